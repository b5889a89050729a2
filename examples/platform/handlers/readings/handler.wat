;; Counts readings, and emits how many there were: the handler of the tenant `quiet`.
;;
;; It looks at nothing of an event, so it counts events of any type. `host build` makes a
;; binary of this text, as `host deploy` wants it.
(module
  (import "event-host:handler/outbox@0.1.0" "emit" (func $emit (param i32 i32)))
  (import "event-host:handler/state@0.1.0" "get" (func $get (param i32 i32 i32)))
  (import "event-host:handler/state@0.1.0" "set" (func $set (param i32 i32 i32 i32 i32)))

  (memory (export "memory") 2)

  ;; Texts, below 128.
  (data (i32.const 0) "count")                            ;; 5 bytes
  (data (i32.const 16) "counted")                         ;; 7
  (data (i32.const 32) "application/json")                ;; 16
  (data (i32.const 64) "the state is not available")      ;; 26
  (data (i32.const 96) "cannot emit")                     ;; 11
  ;; Zeros: 128, what the export gives, 40 bytes; 176, what an import gives, 16 bytes;
  ;; 192, the message, 108 bytes; 304, digits, up to 328; from 4096, the memory of a call.
  (global $top (mut i32) (i32.const 4096))

  ;; A place for what the host gives. When a call ends, $top goes back.
  (func (export "cabi_realloc") (param $old i32) (param $old_size i32) (param $align i32) (param $size i32) (result i32)
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

  (func (export "cabi_post_event-host:handler/handler@0.1.0#handle") (param i32)
    (global.set $top (i32.const 4096)))

  ;; Gives a failure that is tried again, with this reason.
  (func $retry (param $reason i32) (param $length i32) (result i32)
    (i32.store8 (i32.const 128) (i32.const 1))
    (i32.store8 (i32.const 136) (i32.const 0))
    (i32.store (i32.const 144) (local.get $reason))
    (i32.store (i32.const 148) (local.get $length))
    (i32.store8 (i32.const 152) (i32.const 0))
    (i32.const 128))

  (func (export "event-host:handler/handler@0.1.0#handle") (param $event i32) (result i32)
    (local $at i32) (local $end i32) (local $digits i32) (local $count i64)

    ;; What the state has is a whole number in JSON: digits.
    (call $get (i32.const 0) (i32.const 5) (i32.const 176))
    (if (i32.load8_u (i32.const 176))
      (then (return (call $retry (i32.const 64) (i32.const 26)))))
    (if (i32.load8_u (i32.const 180))
      (then
        (local.set $at (i32.load (i32.const 184)))
        (local.set $end (i32.add (local.get $at) (i32.load (i32.const 188))))
        (block $read
          (loop $digit
            (br_if $read (i32.ge_u (local.get $at) (local.get $end)))
            (local.set $count
              (i64.add
                (i64.mul (local.get $count) (i64.const 10))
                (i64.extend_i32_u (i32.sub (i32.load8_u (local.get $at)) (i32.const 48)))))
            (local.set $at (i32.add (local.get $at) (i32.const 1)))
            (br $digit)))))
    (local.set $count (i64.add (local.get $count) (i64.const 1)))

    ;; The digits of the new number, from the last to the first, up to 328.
    (local.set $digits (i32.const 328))
    (loop $digit
      (local.set $digits (i32.sub (local.get $digits) (i32.const 1)))
      (i32.store8
        (local.get $digits)
        (i32.wrap_i64 (i64.add (i64.rem_u (local.get $count) (i64.const 10)) (i64.const 48))))
      (local.set $count (i64.div_u (local.get $count) (i64.const 10)))
      (br_if $digit (i64.ne (local.get $count) (i64.const 0))))
    (local.set $end (i32.sub (i32.const 328) (local.get $digits)))

    (call $set (i32.const 0) (i32.const 5) (local.get $digits) (local.get $end) (i32.const 176))
    (if (i32.load8_u (i32.const 176))
      (then (return (call $retry (i32.const 64) (i32.const 26)))))

    ;; The message: type, data and datacontenttype; all else stays absent.
    (i32.store (i32.const 192) (i32.const 16))
    (i32.store (i32.const 196) (i32.const 7))
    (i32.store (i32.const 200) (local.get $digits))
    (i32.store (i32.const 204) (local.get $end))
    (i32.store8 (i32.const 256) (i32.const 1))
    (i32.store (i32.const 260) (i32.const 32))
    (i32.store (i32.const 264) (i32.const 16))
    (call $emit (i32.const 192) (i32.const 176))
    (if (i32.load8_u (i32.const 176))
      (then (return (call $retry (i32.const 96) (i32.const 11)))))

    (i32.store8 (i32.const 128) (i32.const 0))
    (i32.const 128))
)
