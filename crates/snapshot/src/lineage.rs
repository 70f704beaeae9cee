//! What relatives know of each other: which of them are in which store, so that a save writes only what is new.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::disk::{Descriptor, StoreId};
use crate::pages::State;

/// Saved relatives that are remembered for a store, and for all. Each keeps the pages that it holds alive.
const OF_A_STORE: usize = 4;
const IN_ALL: usize = 16;

/// Shared by a base and all that derives from it.
#[derive(Default)]
pub(crate) struct Lineage(Mutex<Vec<Saved>>);

/// A relative that is in a store.
#[derive(Clone)]
pub(crate) struct Saved {
    pub(crate) store: StoreId,
    pub(crate) layers: Vec<Descriptor>,
    pub(crate) state: State,
}

impl Lineage {
    /// The first one of a store stays, for it is the base of most; of the others the latest do.
    pub(crate) fn remember(&self, saved: Saved) {
        let mut all = self.lock();
        if all.iter().any(|other| other.store == saved.store && other.layers == saved.layers) {
            return;
        }
        let of_store = all.iter().enumerate().filter(|(_, other)| other.store == saved.store);
        let of_store: Vec<usize> = of_store.map(|(at, _)| at).collect();
        if of_store.len() == OF_A_STORE {
            all.remove(of_store[1]);
        } else if all.len() == IN_ALL {
            // There are other stores then.
            if let Some(at) = all.iter().position(|other| other.store != saved.store) {
                all.remove(at);
            }
        }
        all.push(saved);
    }

    pub(crate) fn saved_in(&self, store: StoreId) -> Vec<Saved> {
        self.lock().iter().filter(|saved| saved.store == store).cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Saved>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
