//! The conditions `Ready`, `Reconciling` and `Stalled` of all three kinds, as the kstatus library reads them (`kubectl
//! wait`, Flux, Helm). Decides only which of the three is True; what state an object is in is decided elsewhere.

/// Condition: the object is as its spec says, and its pods are available.
pub const READY: &str = "Ready";
/// Condition: the controller works towards the spec, or waits for something that comes without a person.
pub const RECONCILING: &str = "Reconciling";
/// Condition: nothing more happens before a person changes something.
pub const STALLED: &str = "Stalled";

/// The state of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectState {
    /// The object is as its spec says.
    Ready,
    /// An update or a change of the number of pods is not complete.
    Reconciling,
    /// Nothing more happens before a person changes something.
    Stalled,
    /// Nothing is left to do, and pods are not available.
    Unavailable,
}

impl ObjectState {
    /// The three conditions and whether each is True.
    pub fn conditions(self) -> [(&'static str, bool); 3] {
        [
            (READY, self == Self::Ready),
            (RECONCILING, self == Self::Reconciling),
            (STALLED, self == Self::Stalled),
        ]
    }
}
