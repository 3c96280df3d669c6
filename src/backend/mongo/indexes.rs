//! The indexes of the collection. Made when a storage is opened; a server that has them already does nothing.

use mongodb::IndexModel;
use mongodb::bson::{Document, doc};
use mongodb::options::IndexOptions;

/// Of the orders that may not have been sent.
pub(super) const UNTOLD: &str = "skalds_untold";
/// Of what a dispatcher can assign of one class.
pub(super) const DISPATCH_CLASS: &str = "skalds_dispatch_class";
/// Of what waits, in the dispatcher's order.
pub(super) const DISPATCH: &str = "skalds_dispatch";
/// Of a sweep over all tasks.
pub(super) const SCAN: &str = "skalds_scan";
/// Of a sweep over a Skald's tasks.
pub(super) const SCAN_EXECUTOR: &str = "skalds_scan_executor";

/// Each with the question that it answers without sorting and without reading what it leaves out.
pub(super) fn all() -> Vec<IndexModel> {
    vec![
        // A task by its id. The Python package makes the same one, under the same name.
        index("id_1", doc! {"id": 1}, Kind::Unique),
        // What a dispatcher can assign: the most urgent of a class, and of all.
        index(
            DISPATCH_CLASS,
            doc! {"lifecycleStatus": 1, "className": 1, "priority": -1, "createDateTime": 1, "id": 1},
            Kind::Plain,
        ),
        index(
            DISPATCH,
            doc! {"lifecycleStatus": 1, "priority": -1, "createDateTime": 1, "id": 1},
            Kind::Plain,
        ),
        // A sweep's next batch, of a monitor and of a Skald.
        index(SCAN, doc! {"lifecycleStatus": 1, "id": 1}, Kind::Plain),
        index(SCAN_EXECUTOR, doc! {"executor": 1, "lifecycleStatus": 1, "id": 1}, Kind::Plain),
        // The few tasks that have one.
        index(UNTOLD, doc! {"skalds.untold.at": 1}, Kind::Sparse),
        // The list, newest first.
        index("skalds_newest", doc! {"createDateTime": -1, "id": 1}, Kind::Plain),
        // The worker classes that there are.
        index("skalds_class", doc! {"className": 1}, Kind::Plain),
    ]
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Plain,
    Unique,
    /// Only the documents that have the field.
    Sparse,
}

fn index(name: &str, keys: Document, kind: Kind) -> IndexModel {
    let options = IndexOptions::builder()
        .name(name.to_owned())
        .unique((kind == Kind::Unique).then_some(true))
        .sparse((kind == Kind::Sparse).then_some(true))
        .build();
    IndexModel::builder().keys(keys).options(options).build()
}
