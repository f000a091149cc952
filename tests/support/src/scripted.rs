//! Layers made of closures.

use std::sync::Arc;

use tombolo_core::block::BlockDevice;
use tombolo_core::fs::{Client, Export, FileSystem};
use tombolo_core::{Answer, Error, Result};
use tombolo_host_runtime::promise::Promise;
use tombolo_layer_basic::around::{Around, Call, Layered, LayeredDisk, Payload};

/// Treatment of one operation.
pub enum Act {
    /// Performs it.
    Pass,
    /// Refuses it.
    Fail(Error),
    /// Performs it, and loses the answer.
    Lose(Error),
    /// Performs it, and answers once the promise is kept.
    Withhold(Arc<Promise<()>>),
}

impl Act {
    /// Refuses the operation if `is_refused`.
    pub fn fail_if(is_refused: bool, error: Error) -> Self {
        if is_refused { Self::Fail(error) } else { Self::Pass }
    }
}

/// A layer that treats each operation as a closure says.
///
/// The closure runs before the operation, on the caller's thread, and may itself use the file system.
pub struct Scripted<F>(F);

impl<F: Fn(Call) -> Act + Send + Sync + 'static> Scripted<F> {
    /// Creates the layer over an export.
    pub fn over(inner: Arc<dyn Export>, script: F) -> Arc<dyn Export> {
        Arc::new(Layered::new(inner, Arc::new(Self(script))))
    }

    /// Creates the layer over a disk, whose operations are treated like those of a file (see
    /// [`LayeredDisk`]).
    pub fn over_disk(inner: Arc<dyn BlockDevice>, script: F) -> Arc<dyn BlockDevice> {
        Arc::new(LayeredDisk::new(inner, Arc::new(Self(script))))
    }
}

impl<F: Fn(Call) -> Act + Send + Sync + 'static> Around for Scripted<F> {
    fn around<T: Payload>(&self, call: Call, inner: impl FnOnce() -> Answer<T>) -> Answer<T> {
        match (self.0)(call) {
            Act::Pass => inner(),
            Act::Fail(error) => Answer::err(error),
            Act::Lose(error) => {
                drop(inner().wait());
                Answer::err(error)
            }
            Act::Withhold(promise) => {
                let answer = inner();
                Answer::later(async move {
                    promise.kept().await;
                    answer.resolve().await
                })
            }
        }
    }
}

/// An export whose sessions are wrapped by a closure.
struct Wrapped<F>(Arc<dyn Export>, F);

impl<F, S> Export for Wrapped<F>
where
    F: Fn(Arc<dyn FileSystem>) -> S + Send + Sync,
    S: FileSystem + 'static,
{
    fn attach(&self, client: &Client) -> Result<Arc<dyn FileSystem>> {
        Ok(Arc::new((self.1)(self.0.attach(client)?)))
    }
}

/// Returns an export whose sessions are those of `inner`, each wrapped by `wrap`.
pub fn wrapped<S: FileSystem + 'static>(
    inner: Arc<dyn Export>,
    wrap: impl Fn(Arc<dyn FileSystem>) -> S + Send + Sync + 'static,
) -> Arc<dyn Export> {
    Arc::new(Wrapped(inner, wrap))
}
