;; Counts the orders of each customer, and says hello at the first.
;;
;; The host takes this text as it is. It is a core module: its imports and exports are the
;; contract's functions in their canonical ABI, by whose names the host knows it.
(module
  (import "event-host:handler/outbox@0.1.0" "emit" (func $emit (param i32 i32)))
  (import "event-host:handler/state@0.1.0" "get" (func $get (param i32 i32 i32)))
  (import "event-host:handler/state@0.1.0" "set" (func $set (param i32 i32 i32 i32 i32)))
  (import "event-host:handler/log@0.1.0" "log" (func $log (param i32 i32 i32)))

  (memory (export "memory") 2)

  ;; Texts, below 256.
  (data (i32.const 0) "\22customer\22")                   ;; 10 bytes
  (data (i32.const 16) "orders/")                         ;; 7
  (data (i32.const 32) "customer.greeted")                ;; 16
  (data (i32.const 64) "{\22text\22:\22Hello, ")          ;; 16
  (data (i32.const 96) "!\22}")                           ;; 3
  (data (i32.const 112) "the order names no customer")    ;; 27
  (data (i32.const 144) "the state is not available")     ;; 26
  (data (i32.const 176) "cannot emit")                    ;; 11
  ;; Zeros: 256, what the export gives, 40 bytes; 304, what an import gives, 16 bytes;
  ;; 320, the message, 108 bytes; 448, digits, up to 472; from 4096, the memory of a call.
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

  (func (export "cabi_post_event-host:handler/handler@0.1.0#handle") (param i32)
    (global.set $top (i32.const 4096)))

  ;; Copies bytes, and gives the place behind them.
  (func $put (param $to i32) (param $from i32) (param $length i32) (result i32)
    (memory.copy (local.get $to) (local.get $from) (local.get $length))
    (i32.add (local.get $to) (local.get $length)))

  ;; Where the bytes $what stand in $text, or behind its end.
  (func $find (param $text i32) (param $end i32) (param $what i32) (param $length i32) (result i32)
    (local $i i32)
    (block $none
      (loop $next
        (br_if $none (i32.gt_u (i32.add (local.get $text) (local.get $length)) (local.get $end)))
        (local.set $i (i32.const 0))
        (block $differs
          (loop $same
            (br_if $differs
              (i32.ne
                (i32.load8_u (i32.add (local.get $text) (local.get $i)))
                (i32.load8_u (i32.add (local.get $what) (local.get $i)))))
            (local.set $i (i32.add (local.get $i) (i32.const 1)))
            (br_if $same (i32.lt_u (local.get $i) (local.get $length))))
          (return (local.get $text)))
        (local.set $text (i32.add (local.get $text) (i32.const 1)))
        (br $next)))
    (local.get $end))

  ;; Gives a failure: 0 is retry, without a time, and 1 is reject.
  (func $fail (param $case i32) (param $reason i32) (param $length i32) (result i32)
    (i32.store8 (i32.const 256) (i32.const 1))
    (i32.store8 (i32.const 264) (local.get $case))
    (i32.store (i32.const 272) (local.get $reason))
    (i32.store (i32.const 276) (local.get $length))
    (i32.store8 (i32.const 280) (i32.const 0))
    (i32.const 256))

  (func (export "event-host:handler/handler@0.1.0#handle") (param $event i32) (result i32)
    (local $at i32) (local $end i32) (local $name i32) (local $length i32)
    (local $key i32) (local $count i64) (local $digits i32) (local $text i32)

    ;; The name is what stands between the two quotes behind `"customer"`.
    (local.set $at (i32.load offset=76 (local.get $event)))
    (local.set $end (i32.add (local.get $at) (i32.load offset=80 (local.get $event))))
    (local.set $at (i32.add (call $find (local.get $at) (local.get $end) (i32.const 0) (i32.const 10)) (i32.const 10)))
    (local.set $name (i32.add (call $find (local.get $at) (local.get $end) (i32.const 0) (i32.const 1)) (i32.const 1)))
    (local.set $at (call $find (local.get $name) (local.get $end) (i32.const 0) (i32.const 1)))
    (if (i32.ge_u (local.get $at) (local.get $end))
      (then (return (call $fail (i32.const 1) (i32.const 112) (i32.const 27)))))
    (local.set $length (i32.sub (local.get $at) (local.get $name)))

    ;; The key is `orders/` and the name.
    (local.set $key (call $take (i32.const 0) (i32.const 0) (i32.const 1) (i32.add (local.get $length) (i32.const 7))))
    (drop (call $put (call $put (local.get $key) (i32.const 16) (i32.const 7)) (local.get $name) (local.get $length)))

    ;; Its value is a whole number in JSON: digits.
    (call $get (local.get $key) (i32.add (local.get $length) (i32.const 7)) (i32.const 304))
    (if (i32.load8_u (i32.const 304))
      (then (return (call $fail (i32.const 0) (i32.const 144) (i32.const 26)))))
    (if (i32.load8_u (i32.const 308))
      (then
        (local.set $at (i32.load (i32.const 312)))
        (local.set $end (i32.add (local.get $at) (i32.load (i32.const 316))))
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

    ;; The digits of the new number, from the last to the first, up to 472.
    (local.set $digits (i32.const 472))
    (local.set $at (i32.const 0))
    (block $written
      (loop $digit
        (local.set $digits (i32.sub (local.get $digits) (i32.const 1)))
        (i32.store8
          (local.get $digits)
          (i32.wrap_i64
            (i64.add
              (i64.rem_u
                (i64.div_u (local.get $count) (call $power (local.get $at)))
                (i64.const 10))
              (i64.const 48))))
        (local.set $at (i32.add (local.get $at) (i32.const 1)))
        (br_if $digit (i64.ge_u (local.get $count) (call $power (local.get $at))))))
    (call $set
      (local.get $key) (i32.add (local.get $length) (i32.const 7))
      (local.get $digits) (i32.sub (i32.const 472) (local.get $digits))
      (i32.const 304))
    (if (i32.load8_u (i32.const 304))
      (then (return (call $fail (i32.const 0) (i32.const 144) (i32.const 26)))))

    ;; The key is what is logged, with level 2, info.
    (call $log (i32.const 2) (local.get $key) (i32.add (local.get $length) (i32.const 7)))

    ;; The first order is greeted: type, data and subject; all else stays absent.
    (if (i64.eq (local.get $count) (i64.const 1))
      (then
        (local.set $text (call $take (i32.const 0) (i32.const 0) (i32.const 1) (i32.add (local.get $length) (i32.const 19))))
        (drop
          (call $put
            (call $put (call $put (local.get $text) (i32.const 64) (i32.const 16)) (local.get $name) (local.get $length))
            (i32.const 96) (i32.const 3)))
        (i32.store (i32.const 320) (i32.const 32))
        (i32.store (i32.const 324) (i32.const 16))
        (i32.store (i32.const 328) (local.get $text))
        (i32.store (i32.const 332) (i32.add (local.get $length) (i32.const 19)))
        (i32.store8 (i32.const 360) (i32.const 1))
        (i32.store (i32.const 364) (local.get $name))
        (i32.store (i32.const 368) (local.get $length))
        (call $emit (i32.const 320) (i32.const 304))
        (if (i32.load8_u (i32.const 304))
          (then (return (call $fail (i32.const 0) (i32.const 176) (i32.const 11)))))))

    (i32.store8 (i32.const 256) (i32.const 0))
    (i32.const 256))

  ;; Ten to this power.
  (func $power (param $exponent i32) (result i64)
    (local $power i64)
    (local.set $power (i64.const 1))
    (block $done
      (loop $more
        (br_if $done (i32.eqz (local.get $exponent)))
        (local.set $power (i64.mul (local.get $power) (i64.const 10)))
        (local.set $exponent (i32.sub (local.get $exponent) (i32.const 1)))
        (br $more)))
    (local.get $power))
)
