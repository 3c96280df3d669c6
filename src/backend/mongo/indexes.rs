//! The indexes of the collection. Made when a storage is opened; a server that has them already does nothing.

use mongodb::IndexModel;
use mongodb::bson::{Document, doc};
use mongodb::options::IndexOptions;

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
        index("id_1", doc! {"id": 1}, true),
        // What a dispatcher can assign: the most urgent of a class, and of all.
        index(
            DISPATCH_CLASS,
            doc! {"lifecycleStatus": 1, "className": 1, "priority": -1, "createDateTime": 1, "id": 1},
            false,
        ),
        index(DISPATCH, doc! {"lifecycleStatus": 1, "priority": -1, "createDateTime": 1, "id": 1}, false),
        // A sweep's next batch, of a monitor and of a Skald.
        index(SCAN, doc! {"lifecycleStatus": 1, "id": 1}, false),
        index(SCAN_EXECUTOR, doc! {"executor": 1, "lifecycleStatus": 1, "id": 1}, false),
        // The list, newest first.
        index("skalds_newest", doc! {"createDateTime": -1, "id": 1}, false),
        // The worker classes that there are.
        index("skalds_class", doc! {"className": 1}, false),
    ]
}

fn index(name: &str, keys: Document, unique: bool) -> IndexModel {
    let options = IndexOptions::builder().name(name.to_owned()).unique(unique.then_some(true)).build();
    IndexModel::builder().keys(keys).options(options).build()
}
