;; examples/programs/cohabitation/compressor.c, compiled with clang 14 (-Os -mbulk-memory -Wl,--strip-all) and printed as text:
;; the experiment is to be the same on machines without a compiler. `make program-texts` writes it anew.
(module
  (type (;0;) (func))
  (type (;1;) (func (param i32) (result i32)))
  (table (;0;) 1 1 funcref)
  (memory (;0;) 2)
  (global (;0;) (mut i32) i32.const 66560)
  (export "memory" (memory 0))
  (export "plimsoll_abi_1" (func 0))
  (export "ingress" (func 1))
  (func (;0;) (type 0))
  (func (;1;) (type 1) (param i32) (result i32)
    (local i32 i32 i32 i32 i32 i32 i32 i32 i32)
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
        local.get 0
        local.get 2
        i32.const 5
        i32.shl
        i32.add
        local.tee 3
        i32.const 16
        i32.add
        local.set 4
        block ;; label = @3
          block ;; label = @4
            local.get 3
            i32.const 33
            i32.add
            local.tee 5
            i32.load8_u
            i32.const 128
            i32.ne
            br_if 0 (;@4;)
            local.get 3
            i32.const 20
            i32.add
            i32.load
            local.set 6
            i32.const 0
            local.set 1
            local.get 4
            i32.load
            local.tee 5
            i32.const 0
            i32.store16 offset=24 align=1
            local.get 5
            local.get 6
            i32.const -14
            i32.add
            local.tee 3
            i32.const 8
            i32.shl
            local.get 3
            i32.const 65280
            i32.and
            i32.const 8
            i32.shr_u
            i32.or
            i32.store16 offset=16 align=1
            i32.const 14
            local.set 3
            loop ;; label = @5
              local.get 1
              local.get 5
              local.get 3
              i32.add
              i32.load16_u align=1
              local.tee 4
              i32.const 8
              i32.shl
              local.get 4
              i32.const 8
              i32.shr_u
              i32.or
              i32.const 65535
              i32.and
              i32.add
              local.set 1
              local.get 3
              i32.const -14
              i32.add
              local.set 4
              local.get 3
              i32.const 2
              i32.add
              local.set 3
              local.get 4
              i32.const 18
              i32.lt_u
              br_if 0 (;@5;)
            end
            block ;; label = @5
              local.get 1
              i32.const 65536
              i32.lt_u
              br_if 0 (;@5;)
              loop ;; label = @6
                local.get 1
                i32.const 65535
                i32.and
                local.get 1
                i32.const 16
                i32.shr_u
                i32.add
                local.tee 1
                i32.const 65535
                i32.gt_u
                br_if 0 (;@6;)
              end
            end
            local.get 5
            i32.const 0
            i32.store16 offset=40 align=1
            local.get 5
            local.get 6
            i32.const -34
            i32.add
            local.tee 3
            i32.const 8
            i32.shl
            local.get 3
            i32.const 65280
            i32.and
            i32.const 8
            i32.shr_u
            i32.or
            i32.store16 offset=38 align=1
            local.get 5
            local.get 1
            i32.const -1
            i32.xor
            local.tee 3
            i32.const 8
            i32.shl
            local.get 3
            i32.const 65280
            i32.and
            i32.const 8
            i32.shr_u
            i32.or
            i32.store16 offset=24 align=1
            local.get 0
            i32.load offset=8
            local.set 1
            br 1 (;@3;)
          end
          local.get 3
          i32.const 20
          i32.add
          i32.load
          local.tee 6
          i32.const 42
          i32.lt_u
          br_if 0 (;@3;)
          local.get 4
          i32.load
          local.tee 4
          i32.load16_u offset=12 align=1
          i32.const 8
          i32.ne
          br_if 0 (;@3;)
          local.get 4
          i32.load8_u offset=14
          local.tee 7
          i32.const 240
          i32.and
          i32.const 64
          i32.ne
          br_if 0 (;@3;)
          local.get 7
          i32.const 2
          i32.shl
          i32.const 60
          i32.and
          local.tee 7
          i32.const 20
          i32.lt_u
          br_if 0 (;@3;)
          local.get 6
          local.get 7
          i32.const 22
          i32.add
          local.tee 8
          i32.lt_u
          br_if 0 (;@3;)
          local.get 4
          i32.load8_u offset=23
          i32.const 17
          i32.ne
          br_if 0 (;@3;)
          local.get 4
          i32.load16_u offset=20 align=1
          i32.const 65343
          i32.and
          br_if 0 (;@3;)
          local.get 7
          i32.const 14
          i32.add
          local.tee 7
          local.get 4
          local.get 7
          i32.add
          i32.const 4
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
          local.tee 9
          local.get 8
          i32.lt_u
          br_if 0 (;@3;)
          local.get 9
          local.get 6
          i32.gt_u
          br_if 0 (;@3;)
          local.get 7
          i32.const 34
          i32.ne
          br_if 0 (;@3;)
          local.get 9
          local.get 4
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
          local.get 5
          i32.const 0
          i32.store8
          local.get 3
          i32.const 32
          i32.add
          i32.const 3
          i32.store8
          local.get 3
          i32.const 36
          i32.add
          i32.const 0
          i32.store
          local.get 3
          i32.const 34
          i32.add
          local.get 8
          i32.store16
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
)
