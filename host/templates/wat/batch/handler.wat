;; Counts orders, with one write to the state for all orders of a call.
;;
;; The host takes this text as it is. It is a core module: its imports and exports are the
;; contract's functions in their canonical ABI, by whose names the host knows it.
(module
  (import "event-host:handler/state@0.1.0" "get" (func $get (param i32 i32 i32)))
  (import "event-host:handler/state@0.1.0" "set" (func $set (param i32 i32 i32 i32 i32)))
  (import "event-host:handler/log@0.1.0" "log" (func $log (param i32 i32 i32)))

  (memory (export "memory") 2)

  ;; Texts, below 256.
  (data (i32.const 0) "orders")                           ;; 6 bytes
  (data (i32.const 16) "the state is not available")      ;; 26
  ;; Zeros: 256, what the export gives, a list, 8 bytes; 272, what an import gives, 16 bytes;
  ;; 296, digits, up to 320; from 4096, the memory of a call.
  (global $top (mut i32) (i32.const 4096))

  ;; A place for what the host gives, and for what a call makes. Nothing is ever freed by
  ;; itself: when a call ends, $top goes back.
  (func $take (export "cabi_realloc") (param $old i32) (param $old_size i32) (param $align i32) (param $size i32) (result i32)
    (local $place i32)
    (local.set $place
      (i32.and
        (i32.sub (i32.add (global.get $top) (local.get $align)) (i32.const 1))
        (i32.sub (i32.const 0) (local.get $align))))
    (global.set $top (i32.add (local.get $place) (local.get $size)))
    (block $fits
      (br_if $fits (i32.le_u (global.get $top) (i32.shl (memory.size) (i32.const 16))))
      (br_if $fits
        (i32.ne
          (memory.grow (i32.add (i32.shr_u (local.get $size) (i32.const 16)) (i32.const 1)))
          (i32.const -1)))
      unreachable)
    (local.get $place))

  (func (export "cabi_post_event-host:handler/batch-handler@0.1.0#handle-batch") (param i32)
    (global.set $top (i32.const 4096)))

  ;; Adds to the number of orders in the state, a whole number in JSON: digits. Gives 0, or 1
  ;; if the state is not available.
  (func $add (param $count i64) (result i32)
    (local $at i32) (local $end i32) (local $before i64)
    (call $get (i32.const 0) (i32.const 6) (i32.const 272))
    (if (i32.load8_u (i32.const 272)) (then (return (i32.const 1))))
    (if (i32.load8_u (i32.const 276))
      (then
        (local.set $at (i32.load (i32.const 280)))
        (local.set $end (i32.add (local.get $at) (i32.load (i32.const 284))))
        (block $read
          (loop $digit
            (br_if $read (i32.ge_u (local.get $at) (local.get $end)))
            (local.set $before
              (i64.add
                (i64.mul (local.get $before) (i64.const 10))
                (i64.extend_i32_u (i32.sub (i32.load8_u (local.get $at)) (i32.const 48)))))
            (local.set $at (i32.add (local.get $at) (i32.const 1)))
            (br $digit)))))
    (local.set $count (i64.add (local.get $before) (local.get $count)))

    ;; The digits of the new number, from the last to the first, up to 320.
    (local.set $at (i32.const 320))
    (loop $digit
      (local.set $at (i32.sub (local.get $at) (i32.const 1)))
      (i32.store8
        (local.get $at)
        (i32.wrap_i64 (i64.add (i64.rem_u (local.get $count) (i64.const 10)) (i64.const 48))))
      (local.set $count (i64.div_u (local.get $count) (i64.const 10)))
      (br_if $digit (i64.ne (local.get $count) (i64.const 0))))

    ;; They are also what is logged, with level 2, info.
    (call $log (i32.const 2) (local.get $at) (i32.sub (i32.const 320) (local.get $at)))
    (call $set
      (i32.const 0) (i32.const 6)
      (local.get $at) (i32.sub (i32.const 320) (local.get $at))
      (i32.const 272))
    (i32.load8_u (i32.const 272)))

  (func (export "event-host:handler/batch-handler@0.1.0#handle-batch") (param $events i32) (param $count i32) (result i32)
    (local $results i32) (local $size i32) (local $at i32)

    ;; A result for each event, 40 bytes: all zeros is done.
    (local.set $size (i32.mul (local.get $count) (i32.const 40)))
    (local.set $results (call $take (i32.const 0) (i32.const 0) (i32.const 8) (local.get $size)))
    (memory.fill (local.get $results) (i32.const 0) (local.get $size))

    ;; Without the state each of them is a failure, a retry (0) without a time.
    (if (call $add (i64.extend_i32_u (local.get $count)))
      (then
        (local.set $at (local.get $results))
        (loop $next
          (i32.store8 (local.get $at) (i32.const 1))
          (i32.store offset=16 (local.get $at) (i32.const 16))
          (i32.store offset=20 (local.get $at) (i32.const 26))
          (local.set $at (i32.add (local.get $at) (i32.const 40)))
          (br_if $next (i32.lt_u (local.get $at) (i32.add (local.get $results) (local.get $size)))))))

    (i32.store (i32.const 256) (local.get $results))
    (i32.store (i32.const 260) (local.get $count))
    (i32.const 256))
)
