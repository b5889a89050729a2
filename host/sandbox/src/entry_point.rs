//! The entry point of a component: the function that the host calls, by its interface.

use wasmtime::Engine;
use wasmtime::component::types::ComponentItem;
use wasmtime::component::{Component, ComponentNamedList, InstancePre, Lift, Lower};
use wasmtime_wasi_http::p2::bindings::ProxyPre;

use super::bindings::event_host::handler::types::{Event, Failure};
use super::bindings::{BatchEventHandlerPre, EventHandlerPre};
use super::contract::Interface;
use super::ending::chain;
use super::imports::HostState;
use super::incoming;
use super::load_error::LoadReason;

/// What instances are made of, by the interface that the host calls.
pub(super) enum EntryPoint {
    Handler(EventHandlerPre<HostState>),
    BatchHandler(BatchEventHandlerPre<HostState>),
    Http(ProxyPre<HostState>),
}

impl EntryPoint {
    pub(super) fn new(interface: Interface, pre: InstancePre<HostState>) -> wasmtime::Result<Self> {
        Ok(match interface {
            Interface::Handler => Self::Handler(EventHandlerPre::new(pre)?),
            Interface::BatchHandler => Self::BatchHandler(BatchEventHandlerPre::new(pre)?),
            Interface::Http => Self::Http(ProxyPre::new(pre)?),
        })
    }

    fn pre(&self) -> &InstancePre<HostState> {
        match self {
            Self::Handler(pre) => pre.instance_pre(),
            Self::BatchHandler(pre) => pre.instance_pre(),
            Self::Http(pre) => pre.instance_pre(),
        }
    }

    pub(super) fn engine(&self) -> &Engine {
        self.pre().engine()
    }

    pub(super) fn component(&self) -> &Component {
        self.pre().component()
    }

    /// The bindings look the function up by name and leave its type to the first
    /// call; an operator wants to know before.
    pub(super) fn check(&self) -> Result<(), LoadReason> {
        let pre = self.pre();
        match self {
            Self::Handler(_) => check_export::<(Event<'_>,), (Result<(), Failure>,)>(
                pre,
                Interface::Handler,
                "handle",
            ),
            Self::BatchHandler(_) => check_export::<(&[Event<'_>],), (Vec<Result<(), Failure>>,)>(
                pre,
                Interface::BatchHandler,
                "handle-batch",
            ),
            Self::Http(_) => {
                check_export::<incoming::Arguments, ()>(pre, Interface::Http, "handle")
            }
        }
    }
}

/// Whether the function that is called has this type.
fn check_export<Params, Answer>(
    pre: &InstancePre<HostState>,
    interface: Interface,
    name: &str,
) -> Result<(), LoadReason>
where
    Params: ComponentNamedList + Lower,
    Answer: ComponentNamedList + Lift,
{
    let wrong = |detail: String| export_type(interface, format!("`{name}` {detail}"));
    let component = pre.component();
    let function = component
        .get_export_index(None, interface.name())
        .and_then(|interface| component.get_export(Some(&interface), name));
    let Some((ComponentItem::ComponentFunc(function), _)) = function else {
        return Err(wrong("is not a function".to_owned()));
    };
    if function.async_() {
        return Err(wrong("is asynchronous".to_owned()));
    }
    function
        .typecheck::<Params, Answer>(&pre.instance_type())
        .map_err(|error| wrong(format!("has another type: {}", chain(&error))))
}

/// That an export is not what the host calls.
pub(super) fn export_type(interface: Interface, detail: String) -> LoadReason {
    LoadReason::ExportType { name: interface.name().to_owned(), detail }
}
