;; examples/programs/cohabitation/store.c, compiled with clang 14 (-Os -mbulk-memory -Wl,--strip-all) and printed as text:
;; the experiment is to be the same on machines without a compiler. `make program-texts` writes it anew.
(module
  (type (;0;) (func))
  (type (;1;) (func (param i32) (result i32)))
  (table (;0;) 1 1 funcref)
  (memory (;0;) 2)
  (global (;0;) (mut i32) i32.const 99328)
  (export "memory" (memory 0))
  (export "plimsoll_abi_1" (func 0))
  (export "ingress" (func 1))
  (export "egress" (func 3))
  (func (;0;) (type 0))
  (func (;1;) (type 1) (param i32) (result i32)
    (local i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32)
    block ;; label = @1
      block ;; label = @2
        local.get 0
        i32.load offset=8
        local.tee 1
        br_if 0 (;@2;)
        i32.const 0
        local.set 1
        br 1 (;@1;)
      end
      i32.const 0
      local.set 2
      loop ;; label = @2
        block ;; label = @3
          local.get 0
          local.get 2
          i32.const 5
          i32.shl
          i32.add
          local.tee 3
          i32.const 20
          i32.add
          local.tee 4
          i32.load
          local.tee 5
          i32.const 42
          i32.lt_u
          br_if 0 (;@3;)
          local.get 3
          i32.const 16
          i32.add
          local.tee 6
          i32.load
          local.tee 7
          i32.load16_u offset=12 align=1
          i32.const 8
          i32.ne
          br_if 0 (;@3;)
          local.get 7
          i32.load8_u offset=14
          local.tee 8
          i32.const 240
          i32.and
          i32.const 64
          i32.ne
          br_if 0 (;@3;)
          local.get 8
          i32.const 2
          i32.shl
          i32.const 60
          i32.and
          local.tee 8
          i32.const 20
          i32.lt_u
          br_if 0 (;@3;)
          local.get 5
          local.get 8
          i32.const 22
          i32.add
          local.tee 9
          i32.lt_u
          br_if 0 (;@3;)
          local.get 7
          i32.load8_u offset=23
          i32.const 17
          i32.ne
          br_if 0 (;@3;)
          local.get 7
          i32.load16_u offset=20 align=1
          i32.const 65343
          i32.and
          br_if 0 (;@3;)
          local.get 8
          i32.const 14
          i32.add
          local.tee 10
          local.get 7
          local.get 10
          i32.add
          i32.const 4
          i32.add
          i32.load16_u align=1
          local.tee 11
          i32.const 8
          i32.shl
          local.get 11
          i32.const 8
          i32.shr_u
          i32.or
          i32.const 65535
          i32.and
          i32.add
          local.tee 12
          local.get 9
          i32.lt_u
          br_if 0 (;@3;)
          local.get 12
          local.get 5
          i32.gt_u
          br_if 0 (;@3;)
          local.get 12
          local.get 7
          i32.load16_u offset=16 align=1
          local.tee 5
          i32.const 8
          i32.shl
          local.get 5
          i32.const 8
          i32.shr_u
          i32.or
          i32.const 65535
          i32.and
          i32.const 14
          i32.add
          i32.gt_u
          br_if 0 (;@3;)
          local.get 12
          local.get 8
          i32.const 30
          i32.add
          local.tee 11
          i32.lt_u
          br_if 0 (;@3;)
          local.get 7
          local.get 9
          i32.add
          i32.const 4
          i32.add
          i32.load align=1
          i32.const -15794176
          i32.and
          local.tee 5
          i32.const 8
          i32.shr_u
          i32.const 3840
          i32.and
          local.get 5
          i32.const 24
          i32.shr_u
          i32.or
          call 2
          i32.load
          i32.eqz
          br_if 0 (;@3;)
          local.get 8
          i32.const 278
          i32.add
          local.set 1
          i32.const 0
          local.set 5
          loop ;; label = @4
            local.get 7
            local.get 11
            i32.add
            local.get 5
            i32.add
            local.get 11
            local.get 5
            i32.add
            i32.store8
            local.get 6
            i32.load
            local.set 7
            local.get 5
            i32.const 1
            i32.add
            local.tee 5
            i32.const 248
            i32.ne
            br_if 0 (;@4;)
          end
          local.get 4
          local.get 1
          i32.store
          i32.const 0
          local.set 5
          local.get 7
          i32.const 0
          i32.store16 offset=24 align=1
          local.get 7
          local.get 8
          i32.const 8
          i32.shl
          i32.const 67585
          i32.add
          i32.store16 offset=16 align=1
          i32.const 0
          local.set 4
          block ;; label = @4
            local.get 8
            i32.eqz
            br_if 0 (;@4;)
            i32.const 0
            local.set 4
            i32.const 14
            local.set 1
            loop ;; label = @5
              local.get 4
              local.get 7
              local.get 1
              i32.add
              i32.load16_u align=1
              local.tee 9
              i32.const 8
              i32.shl
              local.get 9
              i32.const 8
              i32.shr_u
              i32.or
              i32.const 65535
              i32.and
              i32.add
              local.set 4
              local.get 1
              i32.const -11
              i32.add
              local.set 9
              local.get 1
              i32.const 2
              i32.add
              local.set 1
              local.get 9
              local.get 8
              i32.lt_u
              br_if 0 (;@5;)
            end
            local.get 4
            i32.const 65536
            i32.lt_u
            br_if 0 (;@4;)
            loop ;; label = @5
              local.get 4
              i32.const 65535
              i32.and
              local.get 4
              i32.const 16
              i32.shr_u
              i32.add
              local.tee 4
              i32.const 65535
              i32.gt_u
              br_if 0 (;@5;)
            end
          end
          local.get 7
          local.get 4
          i32.const -1
          i32.xor
          local.tee 1
          i32.const 8
          i32.shl
          local.get 1
          i32.const 65280
          i32.and
          i32.const 8
          i32.shr_u
          i32.or
          i32.store16 offset=24 align=1
          local.get 7
          local.get 10
          i32.add
          i32.const 2049
          i32.store offset=4 align=1
          local.get 6
          i32.load
          local.set 4
          loop ;; label = @4
            local.get 4
            local.get 5
            i32.add
            local.tee 1
            i32.const 6
            i32.add
            local.tee 7
            i32.load8_u
            local.set 6
            local.get 7
            local.get 1
            i32.load8_u
            i32.store8
            local.get 1
            local.get 6
            i32.store8
            local.get 5
            i32.const 1
            i32.add
            local.tee 5
            i32.const 6
            i32.ne
            br_if 0 (;@4;)
          end
          i32.const 0
          local.set 5
          loop ;; label = @4
            local.get 4
            local.get 5
            i32.add
            local.tee 1
            i32.const 30
            i32.add
            local.tee 7
            i32.load8_u
            local.set 6
            local.get 7
            local.get 1
            i32.const 26
            i32.add
            local.tee 1
            i32.load8_u
            i32.store8
            local.get 1
            local.get 6
            i32.store8
            local.get 5
            i32.const 1
            i32.add
            local.tee 5
            i32.const 4
            i32.ne
            br_if 0 (;@4;)
          end
          local.get 4
          local.get 8
          i32.add
          local.set 6
          i32.const 0
          local.set 5
          loop ;; label = @4
            local.get 6
            local.get 5
            i32.add
            local.tee 1
            i32.const 16
            i32.add
            local.tee 4
            i32.load8_u
            local.set 7
            local.get 4
            local.get 1
            i32.const 14
            i32.add
            local.tee 1
            i32.load8_u
            i32.store8
            local.get 1
            local.get 7
            i32.store8
            local.get 5
            i32.const 1
            i32.add
            local.tee 5
            i32.const 2
            i32.ne
            br_if 0 (;@4;)
          end
          local.get 3
          i32.const 32
          i32.add
          i32.const 2
          i32.store16
          local.get 0
          i32.load offset=8
          local.set 1
        end
        local.get 2
        i32.const 1
        i32.add
        local.tee 2
        local.get 1
        i32.lt_u
        br_if 0 (;@2;)
      end
    end
    local.get 1
  )
  (func (;2;) (type 1) (param i32) (result i32)
    (local i32 i32 i32 i32)
    block ;; label = @1
      local.get 0
      i32.const -1640531535
      i32.mul
      i32.const 19
      i32.shr_u
      local.tee 1
      i32.const 2
      i32.shl
      i32.const 1024
      i32.add
      local.tee 2
      i32.load
      local.tee 3
      i32.eqz
      br_if 0 (;@1;)
      local.get 3
      local.get 0
      i32.const 1
      i32.add
      local.tee 4
      i32.eq
      br_if 0 (;@1;)
      loop ;; label = @2
        local.get 1
        i32.const 1
        i32.add
        i32.const 8191
        i32.and
        local.tee 1
        i32.const 2
        i32.shl
        i32.const 1024
        i32.add
        local.tee 2
        i32.load
        local.tee 0
        i32.eqz
        br_if 1 (;@1;)
        local.get 0
        local.get 4
        i32.ne
        br_if 0 (;@2;)
      end
    end
    local.get 2
  )
  (func (;3;) (type 1) (param i32) (result i32)
    (local i32 i32 i32 i32 i32 i32 i32 i32)
    block ;; label = @1
      block ;; label = @2
        local.get 0
        i32.load offset=8
        local.tee 1
        br_if 0 (;@2;)
        i32.const 0
        local.set 1
        br 1 (;@1;)
      end
      local.get 0
      i32.const 20
      i32.add
      local.set 2
      i32.const 0
      local.set 3
      loop ;; label = @2
        block ;; label = @3
          local.get 2
          i32.load
          local.tee 4
          i32.const 42
          i32.lt_u
          br_if 0 (;@3;)
          local.get 2
          i32.const -4
          i32.add
          i32.load
          local.tee 5
          i32.load16_u offset=12 align=1
          i32.const 8
          i32.ne
          br_if 0 (;@3;)
          local.get 5
          i32.load8_u offset=14
          local.tee 6
          i32.const 240
          i32.and
          i32.const 64
          i32.ne
          br_if 0 (;@3;)
          local.get 6
          i32.const 2
          i32.shl
          i32.const 60
          i32.and
          local.tee 6
          i32.const 20
          i32.lt_u
          br_if 0 (;@3;)
          local.get 4
          local.get 6
          i32.const 22
          i32.add
          local.tee 7
          i32.lt_u
          br_if 0 (;@3;)
          local.get 5
          i32.load8_u offset=23
          i32.const 17
          i32.ne
          br_if 0 (;@3;)
          local.get 5
          i32.load16_u offset=20 align=1
          i32.const 65343
          i32.and
          br_if 0 (;@3;)
          local.get 6
          i32.const 14
          i32.add
          local.tee 8
          local.get 5
          local.get 8
          i32.add
          i32.const 4
          i32.add
          i32.load16_u align=1
          local.tee 8
          i32.const 8
          i32.shl
          local.get 8
          i32.const 8
          i32.shr_u
          i32.or
          i32.const 65535
          i32.and
          i32.add
          local.tee 8
          local.get 7
          i32.lt_u
          br_if 0 (;@3;)
          local.get 8
          local.get 4
          i32.gt_u
          br_if 0 (;@3;)
          local.get 8
          local.get 5
          i32.load16_u offset=16 align=1
          local.tee 4
          i32.const 8
          i32.shl
          local.get 4
          i32.const 8
          i32.shr_u
          i32.or
          i32.const 65535
          i32.and
          i32.const 14
          i32.add
          i32.gt_u
          br_if 0 (;@3;)
          local.get 8
          local.get 6
          i32.const 30
          i32.add
          i32.lt_u
          br_if 0 (;@3;)
          local.get 5
          local.get 7
          i32.add
          i32.const 4
          i32.add
          i32.load align=1
          i32.const -15794176
          i32.and
          local.tee 4
          i32.const 8
          i32.shr_u
          i32.const 3840
          i32.and
          local.get 4
          i32.const 24
          i32.shr_u
          i32.or
          local.tee 4
          i32.const 10
          i32.rem_u
          i32.eqz
          br_if 0 (;@3;)
          local.get 4
          call 2
          local.get 4
          i32.const 1
          i32.add
          i32.store
          local.get 0
          i32.load offset=8
          local.set 1
        end
        local.get 2
        i32.const 32
        i32.add
        local.set 2
        local.get 3
        i32.const 1
        i32.add
        local.tee 3
        local.get 1
        i32.lt_u
        br_if 0 (;@2;)
      end
    end
    local.get 1
  )
)
