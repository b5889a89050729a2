//! A resource type of the guest's own, which exists to have handles.

mod bindings {
    wit_bindgen::generate!({
        inline: "
            package test:chaos;
            interface things {
                resource thing { constructor(); }
            }
            world chaos {
                export things;
            }
        ",
    });

    export!(Things);

    pub struct Things;

    impl exports::test::chaos::things::Guest for Things {
        type Thing = Nothing;
    }

    pub struct Nothing;

    impl exports::test::chaos::things::GuestThing for Nothing {
        fn new() -> Self {
            Self
        }
    }
}

use bindings::Nothing;
use bindings::exports::test::chaos::things::Thing;

/// Makes `count` resources, and drops each before the next one or none of them.
pub fn make(count: u64, keep: bool) {
    for _ in 0..count {
        let thing = Thing::new(Nothing);
        if keep {
            std::mem::forget(thing);
        }
    }
}
