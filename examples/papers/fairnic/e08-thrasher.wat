;; examples/programs/cohabitation/thrasher.c, compiled with clang 14 (-Os -mbulk-memory -Wl,--strip-all) and printed as text:
;; the experiment is to be the same on machines without a compiler. `make program-texts` writes it anew.
(module
  (type (;0;) (func))
  (type (;1;) (func (param i32) (result i32)))
  (table (;0;) 1 1 funcref)
  (memory (;0;) 10)
  (global (;0;) (mut i32) i32.const 590848)
  (export "memory" (memory 0))
  (export "plimsoll_abi_1" (func 0))
  (export "ingress" (func 1))
  (func (;0;) (type 0))
  (func (;1;) (type 1) (param i32) (result i32)
    (local i32 i32 i32)
    block ;; label = @1
      local.get 0
      i32.load offset=8
      br_if 0 (;@1;)
      i32.const 0
      return
    end
    i32.const 0
    local.set 1
    loop ;; label = @1
      i32.const -524288
      local.set 2
      loop ;; label = @2
        local.get 2
        i32.const 525312
        i32.add
        local.tee 3
        local.get 3
        i32.load8_u
        i32.const 1
        i32.add
        i32.store8
        local.get 2
        i32.const 128
        i32.add
        local.tee 2
        br_if 0 (;@2;)
      end
      local.get 1
      i32.const 1
      i32.add
      local.tee 1
      local.get 0
      i32.load offset=8
      local.tee 2
      i32.lt_u
      br_if 0 (;@1;)
    end
    local.get 2
  )
)
