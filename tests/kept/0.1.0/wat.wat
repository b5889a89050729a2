;; What the conformance tests ask of a handler, of one event, by hand.
;;
;; It reads no more JSON than it must: it looks for the keys, and copies a number or the inside
;; of a text as it stands, so `name` is written as it was read.
(module
  (import "event-host:handler/outbox@0.1.0" "emit" (func $emit (param i32 i32)))
  (import "event-host:handler/state@0.1.0" "get" (func $get (param i32 i32 i32)))
  (import "event-host:handler/state@0.1.0" "set" (func $set (param i32 i32 i32 i32 i32)))
  (import "event-host:handler/state@0.1.0" "delete" (func $delete (param i32 i32 i32)))
  (import "event-host:handler/state@0.1.0" "keys" (func $keys (param i32 i32 i32 i32)))
  (import "event-host:handler/log@0.1.0" "log" (func $log (param i32 i32 i32)))
  (import "event-host:handler/context@0.1.0" "group" (func $group (param i32)))
  (import "event-host:handler/context@0.1.0" "tenant" (func $tenant (param i32)))
  (import "event-host:handler/context@0.1.0" "remaining-ms" (func $remaining_ms (result i64)))
  (import "event-host:handler/context@0.1.0" "is-replay" (func $is_replay (result i32)))
  (import "event-host:handler/context@0.1.0" "is-late" (func $is_late (result i32)))

  (memory (export "memory") 2)

  ;; Below 1,024 are texts. Then, in zeros: 1,024, what the export gives, 40 bytes; 1,088, what
  ;; an import gives, 16 bytes; 1,104, the group, and 1,112, the tenant, 8 bytes each; 1,120,
  ;; the message, 108 bytes. The memory of a call begins at 4,096.
  (data (i32.const 0) "true")
  (data (i32.const 4) "false")
  (data (i32.const 9) "count")
  (data (i32.const 14) "raw")
  (data (i32.const 17) "\00\ff")
  (data (i32.const 19) "ra")
  (data (i32.const 21) "the event has no data")
  (data (i32.const 42) "the data is no JSON object")
  (data (i32.const 68) "\22id\22:")
  (data (i32.const 73) "\22name\22:")
  (data (i32.const 80) "\22cmd\22:")
  (data (i32.const 86) "order ")
  (data (i32.const 92) " of ")
  (data (i32.const 96) "retry")
  (data (i32.const 101) "not yet: ")
  (data (i32.const 110) "never")
  (data (i32.const 115) "reject")
  (data (i32.const 121) "no: ")
  (data (i32.const 125) "error")
  (data (i32.const 130) "an ordinary error")
  (data (i32.const 147) "boom")
  (data (i32.const 151) "about to fall")
  (data (i32.const 164) "invalid")
  (data (i32.const 171) "order.invalid")
  (data (i32.const 184) "cannot emit an invalid event: ")
  (data (i32.const 214) "denied")
  (data (i32.const 220) "secret.spilled")
  (data (i32.const 234) "not allowed to emit: ")
  (data (i32.const 255) "empty")
  (data (i32.const 260) "order.empty")
  (data (i32.const 271) "cannot emit: ")
  (data (i32.const 284) "bytes")
  (data (i32.const 289) "other bytes")
  (data (i32.const 300) "list")
  (data (i32.const 304) "[1,\22\c3\bc\22,null,{\22a\22:true}]")
  (data (i32.const 328) "another list")
  (data (i32.const 340) "not the list")
  (data (i32.const 352) "late")
  (data (i32.const 356) "-1")
  (data (i32.const 358) "order.never")
  (data (i32.const 369) "too early")
  (data (i32.const 378) "{\22id\22:")
  (data (i32.const 384) ",\22name\22:\22")
  (data (i32.const 393) "\22,\22count\22:")
  (data (i32.const 403) ",\22attempt\22:")
  (data (i32.const 414) ",\22bytes\22:")
  (data (i32.const 423) ",\22group\22:\22")
  (data (i32.const 433) "\22,\22tenant\22:")
  (data (i32.const 444) "\22")
  (data (i32.const 445) "null")
  (data (i32.const 449) ",\22left\22:")
  (data (i32.const 457) ",\22replay\22:")
  (data (i32.const 467) ",\22late\22:")
  (data (i32.const 475) "}")
  (data (i32.const 476) "order.done")
  (global $top (mut i32) (i32.const 4096))
  ;; The event's data, and its end.
  (global $data (mut i32) (i32.const 0))
  (global $end (mut i32) (i32.const 0))
  ;; The text at `cmd`.
  (global $cmd (mut i32) (i32.const 0))
  (global $cmd_length (mut i32) (i32.const 0))
  ;; The text that is being written: its beginning, and its end so far.
  (global $text (mut i32) (i32.const 0))
  (global $to (mut i32) (i32.const 0))

  ;; Memory of the call; all of it is free again when the call has ended.
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

  ;; Begins a text of at most so many bytes.
  (func $begin (param $most i32)
    (global.set $text (call $take (i32.const 0) (i32.const 0) (i32.const 1) (local.get $most)))
    (global.set $to (global.get $text)))

  ;; Adds bytes to the text.
  (func $add (param $from i32) (param $length i32)
    (memory.copy (global.get $to) (local.get $from) (local.get $length))
    (global.set $to (i32.add (global.get $to) (local.get $length))))

  ;; Adds a number to the text.
  (func $add_number (param $number i64)
    (if (i64.ge_u (local.get $number) (i64.const 10))
      (then (call $add_number (i64.div_u (local.get $number) (i64.const 10)))))
    (i32.store8 (global.get $to)
      (i32.add (i32.wrap_i64 (i64.rem_u (local.get $number) (i64.const 10))) (i32.const 48)))
    (global.set $to (i32.add (global.get $to) (i32.const 1))))

  ;; Adds `true` or `false` to the text.
  (func $add_bool (param $is i32)
    (if (local.get $is)
      (then (call $add (i32.const 0) (i32.const 4) (; true ;)))
      (else (call $add (i32.const 4) (i32.const 5) (; false ;)))))

  (func $length (result i32)
    (i32.sub (global.get $to) (global.get $text)))

  ;; Whether two places hold the same bytes.
  (func $same (param $a i32) (param $b i32) (param $length i32) (result i32)
    (block $differs
      (loop $next
        (if (i32.eqz (local.get $length)) (then (return (i32.const 1))))
        (br_if $differs (i32.ne (i32.load8_u (local.get $a)) (i32.load8_u (local.get $b))))
        (local.set $a (i32.add (local.get $a) (i32.const 1)))
        (local.set $b (i32.add (local.get $b) (i32.const 1)))
        (local.set $length (i32.sub (local.get $length) (i32.const 1)))
        (br $next)))
    (i32.const 0))

  ;; Where the value of a key begins, or the end of the data.
  (func $value (param $key i32) (param $length i32) (result i32)
    (local $at i32)
    (local.set $at (global.get $data))
    (block $found
      (loop $next
        (if (i32.gt_u (i32.add (local.get $at) (local.get $length)) (global.get $end))
          (then (return (global.get $end))))
        (br_if $found (call $same (local.get $at) (local.get $key) (local.get $length)))
        (local.set $at (i32.add (local.get $at) (i32.const 1)))
        (br $next)))
    (local.set $at (i32.add (local.get $at) (local.get $length)))
    (block $there
      (loop $blank
        (br_if $there (i32.ge_u (local.get $at) (global.get $end)))
        (br_if $there (i32.ne (i32.load8_u (local.get $at)) (i32.const 32)))
        (local.set $at (i32.add (local.get $at) (i32.const 1)))
        (br $blank)))
    (local.get $at))

  ;; How long the text is that begins here, up to the quote that no backslash escapes.
  (func $text_length (param $from i32) (result i32)
    (local $at i32) (local $byte i32)
    (local.set $at (local.get $from))
    (block $over
      (loop $next
        (br_if $over (i32.ge_u (local.get $at) (global.get $end)))
        (local.set $byte (i32.load8_u (local.get $at)))
        (br_if $over (i32.eq (local.get $byte) (i32.const 34)))
        (if (i32.eq (local.get $byte) (i32.const 92))
          (then (local.set $at (i32.add (local.get $at) (i32.const 1)))))
        (local.set $at (i32.add (local.get $at) (i32.const 1)))
        (br $next)))
    (i32.sub (local.get $at) (local.get $from)))

  ;; How many digits there are from here on.
  (func $digits (param $from i32) (result i32)
    (local $at i32)
    (local.set $at (local.get $from))
    (block $over
      (loop $next
        (br_if $over (i32.ge_u (local.get $at) (global.get $end)))
        (br_if $over
          (i32.gt_u (i32.sub (i32.load8_u (local.get $at)) (i32.const 48)) (i32.const 9)))
        (local.set $at (i32.add (local.get $at) (i32.const 1)))
        (br $next)))
    (i32.sub (local.get $at) (local.get $from)))

  ;; Whether `cmd` is this.
  (func $is (param $cmd i32) (param $length i32) (result i32)
    (if (i32.ne (local.get $length) (global.get $cmd_length)) (then (return (i32.const 0))))
    (call $same (global.get $cmd) (local.get $cmd) (local.get $length)))

  ;; Gives a failure: 0 is retry, and 1 is reject. Without milliseconds, -1, the settings say
  ;; when.
  (func $fail (param $case i32) (param $reason i32) (param $length i32) (param $after i64) (result i32)
    (i32.store8 (i32.const 1024) (i32.const 1))
    (i32.store8 (i32.const 1032) (local.get $case))
    (i32.store (i32.const 1040) (local.get $reason))
    (i32.store (i32.const 1044) (local.get $length))
    (i32.store8 (i32.const 1048) (i64.ge_s (local.get $after) (i64.const 0)))
    (i64.store (i32.const 1056) (local.get $after))
    (i32.const 1024))

  ;; Whether an import gave an error, whose text is then the reason of a retry.
  (func $failed (result i32)
    (i32.load8_u (i32.const 1088)))

  (func $its_reason (result i32)
    (call $fail (i32.const 0)
      (i32.load (i32.const 1096)) (i32.load (i32.const 1100)) (i64.const -1)))

  ;; Makes a message of a type, with nothing else.
  (func $message (param $type i32) (param $length i32)
    (memory.fill (i32.const 1120) (i32.const 0) (i32.const 108))
    (i32.store (i32.const 1120) (local.get $type))
    (i32.store (i32.const 1124) (local.get $length)))

  ;; Gives a key the bytes of the text.
  (func $set_text (param $key i32) (param $length i32)
    (call $set (local.get $key) (local.get $length) (global.get $text) (call $length) (i32.const 1088)))

  ;; Whether a key has the bytes of a place.
  (func $has (param $key i32) (param $length i32) (param $bytes i32) (param $count i32) (result i32)
    (call $get (local.get $key) (local.get $length) (i32.const 1088))
    (if (call $failed) (then (return (i32.const 0))))
    (if (i32.eqz (i32.load8_u (i32.const 1092))) (then (return (i32.const 0))))
    (if (i32.ne (i32.load (i32.const 1100)) (local.get $count)) (then (return (i32.const 0))))
    (call $same (i32.load (i32.const 1096)) (local.get $bytes) (local.get $count)))

  ;; Whether a key has no value.
  (func $has_none (param $key i32) (param $length i32) (result i32)
    (call $get (local.get $key) (local.get $length) (i32.const 1088))
    (i32.eqz (i32.or (call $failed) (i32.load8_u (i32.const 1092)))))

  ;; The number at the key `count`; one that is absent is 0.
  (func $count (result i64)
    (local $at i32) (local $end i32) (local $count i64)
    (if (call $has_none (i32.const 9) (i32.const 5) (; count ;)) (then (return (i64.const 0))))
    (local.set $at (i32.load (i32.const 1096)))
    (local.set $end (i32.add (local.get $at) (i32.load (i32.const 1100))))
    (block $read
      (loop $digit
        (br_if $read (i32.ge_u (local.get $at) (local.get $end)))
        (local.set $count
          (i64.add
            (i64.mul (local.get $count) (i64.const 10))
            (i64.extend_i32_u (i32.sub (i32.load8_u (local.get $at)) (i32.const 48)))))
        (local.set $at (i32.add (local.get $at) (i32.const 1)))
        (br $digit)))
    (local.get $count))

  ;; Whether the bytes 0, 255 can be kept, found, listed and deleted.
  (func $bytes (result i32)
    (call $set (i32.const 14) (i32.const 3) (; raw ;) (i32.const 17) (i32.const 2) (; \00\ff ;) (i32.const 1088))
    (if (call $failed) (then (return (i32.const 0))))
    (if (i32.eqz (call $has (i32.const 14) (i32.const 3) (; raw ;) (i32.const 17) (i32.const 2) (; \00\ff ;))) (then (return (i32.const 0))))
    (call $keys (i32.const 19) (i32.const 2) (; ra ;) (i32.const 10) (i32.const 1088))
    (if (call $failed) (then (return (i32.const 0))))
    (if (i32.ne (i32.load (i32.const 1096)) (i32.const 1)) (then (return (i32.const 0))))
    (if (i32.ne (i32.load offset=4 (i32.load (i32.const 1092))) (i32.const 3)) (then (return (i32.const 0))))
    (call $delete (i32.const 14) (i32.const 3) (; raw ;) (i32.const 1088))
    (if (call $failed) (then (return (i32.const 0))))
    (call $has_none (i32.const 14) (i32.const 3) (; raw ;)))

  (func (export "event-host:handler/handler@0.1.0#handle") (param $event i32) (result i32)
    (local $id i32) (local $id_length i32) (local $name i32) (local $name_length i32)
    (local $attempt i32) (local $count i64) (local $left i64)
    (local.set $attempt (i32.load offset=104 (local.get $event)))

    (global.set $data (i32.load offset=76 (local.get $event)))
    (global.set $end (i32.add (global.get $data) (i32.load offset=80 (local.get $event))))
    (if (i32.eq (global.get $data) (global.get $end))
      (then (return (call $fail (i32.const 1) (i32.const 21) (i32.const 21) (; the event has no data ;) (i64.const -1)))))
    (if (i32.ne (i32.load8_u (global.get $data)) (i32.const 123))
      (then (return (call $fail (i32.const 1) (i32.const 42) (i32.const 26) (; the data is no JSON object ;) (i64.const -1)))))

    (local.set $id (call $value (i32.const 68) (i32.const 5) (; "id": ;)))
    (local.set $id_length (call $digits (local.get $id)))
    (local.set $name (i32.add (call $value (i32.const 73) (i32.const 7) (; "name": ;)) (i32.const 1)))
    (local.set $name_length (call $text_length (local.get $name)))
    (global.set $cmd (i32.add (call $value (i32.const 80) (i32.const 6) (; "cmd": ;)) (i32.const 1)))
    (global.set $cmd_length (call $text_length (global.get $cmd)))

    (call $group (i32.const 1104))
    (call $begin (i32.add (i32.load (i32.const 1108)) (i32.const 64)))
    (call $add (i32.const 86) (i32.const 6) (; order  ;))
    (call $add (local.get $id) (local.get $id_length))
    (call $add (i32.const 92) (i32.const 4) (;  of  ;))
    (call $add (i32.load (i32.const 1104)) (i32.load (i32.const 1108)))
    (call $log (i32.const 2) (global.get $text) (call $length))

    (if (i32.and (call $is (i32.const 96) (i32.const 5) (; retry ;)) (i32.lt_u (local.get $attempt) (i32.const 3)))
      (then
        (call $begin (i32.const 32))
        (call $add (i32.const 101) (i32.const 9) (; not yet:  ;))
        (call $add_number (i64.extend_i32_u (local.get $attempt)))
        (return (call $fail (i32.const 0) (global.get $text) (call $length) (i64.const 50)))))
    (if (call $is (i32.const 110) (i32.const 5) (; never ;))
      (then (return (call $fail (i32.const 0) (i32.const 110) (i32.const 5) (; never ;) (i64.const 50)))))
    (if (call $is (i32.const 115) (i32.const 6) (; reject ;))
      (then
        (call $begin (i32.add (local.get $name_length) (i32.const 4)))
        (call $add (i32.const 121) (i32.const 4) (; no:  ;))
        (call $add (local.get $name) (local.get $name_length))
        (return (call $fail (i32.const 1) (global.get $text) (call $length) (i64.const -1)))))
    (if (call $is (i32.const 125) (i32.const 5) (; error ;))
      (then (return (call $fail (i32.const 0) (i32.const 130) (i32.const 17) (; an ordinary error ;) (i64.const -1)))))
    (if (call $is (i32.const 147) (i32.const 4) (; boom ;))
      (then
        ;; There is no stderr: what was logged as an error is kept for the dead letter too.
        (call $log (i32.const 4) (i32.const 151) (i32.const 13) (; about to fall ;))
        unreachable))
    (if (call $is (i32.const 164) (i32.const 7) (; invalid ;))
      (then
        ;; With a subject, which is empty.
        (call $message (i32.const 171) (i32.const 13) (; order.invalid ;))
        (i32.store8 (i32.const 1160) (i32.const 1))
        (call $emit (i32.const 1120) (i32.const 1088))
        (if (call $failed) (then (return (call $refused (i32.const 184) (i32.const 30) (; cannot emit an invalid event:  ;)))))))
    (if (call $is (i32.const 214) (i32.const 6) (; denied ;))
      (then
        (call $message (i32.const 220) (i32.const 14) (; secret.spilled ;))
        (call $emit (i32.const 1120) (i32.const 1088))
        (if (call $failed) (then (return (call $refused (i32.const 234) (i32.const 21) (; not allowed to emit:  ;)))))))
    (if (call $is (i32.const 255) (i32.const 5) (; empty ;))
      (then
        (call $message (i32.const 260) (i32.const 11) (; order.empty ;))
        (call $emit (i32.const 1120) (i32.const 1088))
        (if (call $failed) (then (return (call $refused (i32.const 271) (i32.const 13) (; cannot emit:  ;)))))))
    (if (call $is (i32.const 284) (i32.const 5) (; bytes ;))
      (then
        (if (i32.eqz (call $bytes))
          (then (return (call $fail (i32.const 1) (i32.const 289) (i32.const 11) (; other bytes ;) (i64.const -1)))))))
    (if (call $is (i32.const 300) (i32.const 4) (; list ;))
      (then
        (if (i32.eqz (i32.or (call $has_none (i32.const 300) (i32.const 4) (; list ;)) (call $has (i32.const 300) (i32.const 4) (; list ;) (i32.const 304) (i32.const 24) (; [1,"ü",null,{"a":true}] ;))))
          (then (return (call $fail (i32.const 1) (i32.const 328) (i32.const 12) (; another list ;) (i64.const -1)))))
        (call $set (i32.const 300) (i32.const 4) (; list ;) (i32.const 304) (i32.const 24) (; [1,"ü",null,{"a":true}] ;) (i32.const 1088))
        (if (call $failed) (then (return (call $its_reason))))
        (if (i32.eqz (call $has (i32.const 300) (i32.const 4) (; list ;) (i32.const 304) (i32.const 24) (; [1,"ü",null,{"a":true}] ;)))
          (then (return (call $fail (i32.const 1) (i32.const 340) (i32.const 12) (; not the list ;) (i64.const -1)))))))
    (if (i32.and (call $is (i32.const 352) (i32.const 4) (; late ;)) (i32.lt_u (local.get $attempt) (i32.const 2)))
      (then
        (call $set (i32.const 9) (i32.const 5) (; count ;) (i32.const 356) (i32.const 2) (; -1 ;) (i32.const 1088))
        (if (call $failed) (then (return (call $its_reason))))
        (call $message (i32.const 358) (i32.const 11) (; order.never ;))
        (call $emit (i32.const 1120) (i32.const 1088))
        (if (call $failed) (then (return (call $its_reason))))
        (return (call $fail (i32.const 0) (i32.const 369) (i32.const 9) (; too early ;) (i64.const -1)))))

    ;; One more.
    (local.set $count (i64.add (call $count) (i64.const 1)))
    (if (call $failed) (then (return (call $its_reason))))
    (call $begin (i32.const 20))
    (call $add_number (local.get $count))
    (call $set_text (i32.const 9) (i32.const 5) (; count ;))
    (if (call $failed) (then (return (call $its_reason))))

    ;; What is emitted, with the event's own extensions.
    (call $tenant (i32.const 1112))
    (local.set $left (call $remaining_ms))
    (call $begin
      (i32.add
        (i32.add (local.get $name_length) (i32.const 256))
        (i32.add (i32.load (i32.const 1108)) (i32.load (i32.const 1116)))))
    (call $add (i32.const 378) (i32.const 6) (; {"id": ;))
    (call $add (local.get $id) (local.get $id_length))
    (call $add (i32.const 384) (i32.const 9) (; ,"name":" ;))
    (call $add (local.get $name) (local.get $name_length))
    (call $add (i32.const 393) (i32.const 10) (; ","count": ;))
    (call $add_number (local.get $count))
    (call $add (i32.const 403) (i32.const 11) (; ,"attempt": ;))
    (call $add_number (i64.extend_i32_u (local.get $attempt)))
    (call $add (i32.const 414) (i32.const 9) (; ,"bytes": ;))
    (call $add_number (i64.extend_i32_u (i32.load offset=80 (local.get $event))))
    (call $add (i32.const 423) (i32.const 10) (; ,"group":" ;))
    (call $add (i32.load (i32.const 1104)) (i32.load (i32.const 1108)))
    (call $add (i32.const 433) (i32.const 11) (; ","tenant": ;))
    (if (i32.load (i32.const 1116))
      (then
        (call $add (i32.const 444) (i32.const 1) (; " ;))
        (call $add (i32.load (i32.const 1112)) (i32.load (i32.const 1116)))
        (call $add (i32.const 444) (i32.const 1) (; " ;)))
      (else (call $add (i32.const 445) (i32.const 4) (; null ;))))
    (call $add (i32.const 449) (i32.const 8) (; ,"left": ;))
    (call $add_bool
      (i32.and (i64.gt_u (local.get $left) (i64.const 0)) (i64.le_u (local.get $left) (i64.const 10000))))
    (call $add (i32.const 457) (i32.const 10) (; ,"replay": ;))
    (call $add_bool (call $is_replay))
    (call $add (i32.const 467) (i32.const 8) (; ,"late": ;))
    (call $add_bool (call $is_late))
    (call $add (i32.const 475) (i32.const 1) (; } ;))

    (call $message (i32.const 476) (i32.const 10) (; order.done ;))
    (i32.store (i32.const 1128) (global.get $text))
    (i32.store (i32.const 1132) (call $length))
    (i32.store8 (i32.const 1160) (i32.const 1))
    (i32.store (i32.const 1164) (local.get $id))
    (i32.store (i32.const 1168) (local.get $id_length))
    (i32.store (i32.const 1220) (i32.load offset=68 (local.get $event)))
    (i32.store (i32.const 1224) (i32.load offset=72 (local.get $event)))
    (call $emit (i32.const 1120) (i32.const 1088))
    (if (call $failed) (then (return (call $refused (i32.const 271) (i32.const 13) (; cannot emit:  ;)))))
    (i32.store8 (i32.const 1024) (i32.const 0))
    (i32.const 1024))

  ;; A retry with these words, and those of the outbox.
  (func $refused (param $words i32) (param $length i32) (result i32)
    (call $begin (i32.add (local.get $length) (i32.load (i32.const 1100))))
    (call $add (local.get $words) (local.get $length))
    (call $add (i32.load (i32.const 1096)) (i32.load (i32.const 1100)))
    (call $fail (i32.const 0) (global.get $text) (call $length) (i64.const -1)))

  ;; The metadata of the contract, world `event-handler`.
  (@custom "component-type:event" "\00asm\0d\00\01\00\00\19\16wit-component-encoding\04\00\07\a5\09\01A\02\01A\0f\01B\0d\01q\03\07boolean\01\7f\00\07integer\01z\00\04text\01s\00\04\00\0fextension-value\03\00\00\01ks\01o\02s\01\01p\03\01p}\01r\0c\02ids\06sources\04types\07subject\02\04times\0fdatacontenttype\02\0adataschema\02\0aextensions\04\04data\05\0cpartitionkey\02\08positionw\07attempty\04\00\05event\03\00\06\01kw\01r\02\06reasons\08after-ms\08\04\00\05retry\03\00\09\01q\02\05retry\01\0a\00\06reject\01s\00\04\00\07failure\03\00\0b\03\00\1eevent-host:handler/types@0.1.0\05\00\02\03\00\00\0fextension-value\01B\0d\02\03\02\01\01\04\00\0fextension-value\03\00\00\01p}\01ks\01o\02s\01\01p\04\01r\0a\04types\04data\02\02id\03\06source\03\07subject\03\04time\03\0fdatacontenttype\03\0adataschema\03\0cpartitionkey\03\0aextensions\05\04\00\07message\03\00\06\01q\03\07invalid\01s\00\06denied\01s\00\05other\01s\00\04\00\0aemit-error\03\00\08\01j\00\01\09\01@\01\07message\07\00\0a\04\00\04emit\01\0b\03\00\1fevent-host:handler/outbox@0.1.0\05\02\01B\10\01q\02\0binvalid-key\01s\00\05other\01s\00\04\00\0bstate-error\03\00\00\01p}\01k\02\01j\01\03\01\01\01@\01\03keys\00\04\04\00\03get\01\05\01j\00\01\01\01@\02\03keys\05value\02\00\06\04\00\03set\01\07\01@\01\03keys\00\06\04\00\06delete\01\08\01ps\01j\01\09\01\01\01@\02\06prefixs\05limity\00\0a\04\00\04keys\01\0b\03\00\1eevent-host:handler/state@0.1.0\05\03\01B\04\01m\05\05trace\05debug\04info\04warn\05error\04\00\05level\03\00\00\01@\02\05level\01\07messages\01\00\04\00\03log\01\02\03\00\1cevent-host:handler/log@0.1.0\05\04\01B\08\01@\00\00s\04\00\05group\01\00\04\00\06tenant\01\00\01@\00\00w\04\00\0cremaining-ms\01\01\01@\00\00\7f\04\00\09is-replay\01\02\04\00\07is-late\01\02\03\00 event-host:handler/context@0.1.0\05\05\02\03\00\00\05event\02\03\00\00\07failure\01B\07\02\03\02\01\06\04\00\05event\03\00\00\02\03\02\01\07\04\00\07failure\03\00\02\01j\00\01\03\01@\01\05event\01\00\04\04\00\06handle\01\05\04\00 event-host:handler/handler@0.1.0\05\08\04\00&event-host:handler/event-handler@0.1.0\04\00\0b\13\01\00\0devent-handler\03\00\00\00/\09producers\01\0cprocessed-by\01\0dwit-component\070.262.0")
)
