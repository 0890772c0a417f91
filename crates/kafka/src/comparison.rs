//! Compares the ID of the cluster that a producer has reached, before anything is published on that producer.

use futures_util::future::LocalBoxFuture;
use relay::failure::KafkaFailure;
use std::cell::RefCell;
use std::rc::Rc;

/// Decides whether the relay may publish to the cluster with this ID.
pub(crate) type Compare = Rc<dyn Fn(String) -> LocalBoxFuture<'static, Result<(), KafkaFailure>>>;

/// Without [`Comparison::set`], every cluster is accepted.
#[derive(Default)]
pub struct Comparison {
    compare: RefCell<Option<Compare>>,
    /// The ID of the cluster that was compared last.
    accepted: RefCell<Option<String>>,
    /// The ID of the cluster that answered last.
    answered: RefCell<Option<String>>,
}

impl Comparison {
    /// From now on, compares each cluster that answers.
    pub fn set(&self, compare: Compare) {
        self.compare.replace(Some(compare));
    }

    /// The ID of the cluster that answered last.
    pub fn answered(&self) -> Option<String> {
        self.answered.borrow().clone()
    }

    /// Fails if the cluster with this ID is not the one of the outbox, or if they could not be compared.
    pub async fn check(&self, id: String) -> Result<(), KafkaFailure> {
        self.answered.replace(Some(id.clone()));
        let compare = self.compare.borrow().clone();
        let Some(compare) = compare.filter(|_| self.accepted.borrow().as_ref() != Some(&id)) else {
            return Ok(());
        };
        compare(id.clone()).await?;
        self.accepted.replace(Some(id));
        Ok(())
    }
}
