use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::chain::value::Value;

fn map(entries: &[(&str, Value)]) -> Value {
    Value::Map(entries.iter().map(|(key, value)| (key.as_bytes().to_vec(), value.clone())).collect())
}

fn list(elements: impl IntoIterator<Item = Value>) -> Value {
    Value::List(elements.into_iter().collect())
}

fn strings(members: &[&str]) -> Value {
    list(members.iter().map(|member| Value::from(*member)))
}

fn pair(score: Value, member: &str) -> Value {
    list([score, member.into()])
}

fn folded(combine: &Combine, deltas: impl IntoIterator<Item = Value>) -> Result<Value, CombineError> {
    deltas.into_iter().try_fold(Value::Nil, |acc, delta| fold(combine, acc, delta))
}

fn message(combine: &Combine, acc: Value, delta: Value) -> String {
    let mut kept = acc.clone();
    let error = fold_into(combine, &mut kept, delta).unwrap_err();
    assert_eq!(kept, acc, "an error leaves the accumulator as it was");
    error.to_string()
}

#[test]
fn sums_add_and_tables_add_key_by_key() {
    let sum = folded(
        &Combine::Sum,
        [
            map(&[("paid", 2.into()), ("open", 1.into())]),
            Value::Nil,
            map(&[("paid", 5.into()), ("void", 1.into())]),
        ],
    );
    assert_eq!(sum, Ok(map(&[("open", 1.into()), ("paid", 7.into()), ("void", 1.into())])));
    assert_eq!(folded(&Combine::Sum, [1.into(), Value::Float(0.5)]), Ok(Value::Float(1.5)));
}

#[test]
fn a_lua_array_is_a_table_with_whole_number_keys() {
    let array = list([10.into(), 20.into()]);
    let table = map(&[("2", 1.into()), ("7", 1.into())]);
    let both = map(&[("1", 10.into()), ("2", 21.into()), ("7", 1.into())]);
    assert_eq!(folded(&Combine::Sum, [array.clone(), table.clone()]), Ok(both.clone()));
    assert_eq!(folded(&Combine::Sum, [table, array]), Ok(both));
    assert_eq!(folded(&Combine::Sum, [list([]), map(&[("a", 1.into())])]), Ok(map(&[("a", 1.into())])));
    assert_eq!(
        folded(&Combine::Sum, [list([Value::Nil, 1.into()]), list([5.into(), 2.into(), 3.into()])]),
        Ok(list([5.into(), 3.into(), 3.into()]))
    );
}

#[test]
fn errors_name_both_shapes_and_the_place() {
    let deep = |value: Value| map(&[("a", 1.into()), ("sub", map(&[("b", value)]))]);
    assert_eq!(
        message(&Combine::Sum, deep(1.into()), deep("x".into())),
        "cannot fold a string of 1 bytes into the whole number 1 at \"b\" in \"sub\": \
         sum takes numbers, and tables of numbers key by key"
    );
    assert!(
        message(&Combine::Sum, deep(i64::MAX.into()), deep(1.into())).contains("9223372036854775807 and the")
    );
    assert!(
        message(&Combine::Sum, 1.into(), map(&[]))
            .contains("cannot fold a table of 0 into the whole number 1")
    );
    assert!(message(&Combine::Sum, Value::Nil, Value::Bool(true)).contains("the boolean true into nil"));
    assert!(
        message(&Combine::Max, "x".into(), 1.into()).contains("the whole number 1 into a string of 1 bytes")
    );
    assert!(
        message(&Combine::Concat { cap: 3 }, strings(&["a", "b"]), strings(&["c", "d"]))
            .contains("4 elements")
    );
    assert!(message(&Combine::Concat { cap: 3 }, Value::Nil, "a".into()).contains("concat takes lists"));
    let set = folded(&Combine::Union { cap: 3 }, [strings(&["a", "b"])]).unwrap();
    assert!(message(&Combine::Union { cap: 3 }, set, strings(&["a", "c", "d"])).contains("4 elements"));
    assert!(message(&Combine::Union { cap: 1 }, Value::Nil, strings(&["a", "b"])).contains("into nil"));
    assert!(
        message(&Combine::Union { cap: 3 }, Value::Nil, map(&[("a", 1.into())])).contains("tables of true")
    );
    assert!(message(&Combine::TopK { k: 3 }, Value::Nil, strings(&["a"])).contains("[score, member]"));
    let not_a_number = list([pair(Value::Float(f64::NAN), "a")]);
    assert!(fold(&Combine::TopK { k: 3 }, Value::Nil, not_a_number).is_err());
    assert!(
        message(&Combine::Hll { precision: 4 }, Value::Nil, "short".into()).contains("16 bytes of registers")
    );
    assert!(
        message(&Combine::Histogram { bounds: vec![1.0] }, Value::Nil, strings(&["1"])).contains("2 buckets")
    );
    assert_eq!(fold(&Combine::Merge, 1.into(), 2.into()), Err(CombineError::NeedsMerge));
    assert_eq!(fold(&Combine::Merge, Value::Nil, 2.into()), Ok(2.into()));
}

#[test]
fn numbers_compare_exactly_whatever_their_kind() {
    let big = i64::MAX; // as a float it is 2^63
    assert_eq!(folded(&Combine::Max, [big.into(), Value::Float(big as f64)]), Ok(Value::Float(big as f64)));
    assert_eq!(folded(&Combine::Min, [big.into(), Value::Float(big as f64)]), Ok(big.into()));
    assert_eq!(folded(&Combine::Min, [(-2).into(), Value::Float(-2.5)]), Ok(Value::Float(-2.5)));
    assert_eq!(folded(&Combine::Max, ["b".into(), "a".into()]), Ok("b".into()));
    assert_eq!(folded(&Combine::Min, [Value::Bool(true), Value::Bool(false)]), Ok(Value::Bool(false)));
    for order in [[Value::Float(f64::NAN), 1.into()], [1.into(), Value::Float(f64::NAN)]] {
        assert!(matches!(folded(&Combine::Min, order), Ok(Value::Float(number)) if number.is_nan()));
    }
}

#[test]
fn nothing_folded_is_the_empty_answer() {
    assert_eq!(finish(&Combine::Sum, Value::Nil), Value::Nil);
    assert_eq!(finish(&Combine::Hll { precision: 14 }, Value::Nil), 0.into());
    assert_eq!(finish(&Combine::Union { cap: 1 }, Value::Nil), list([]));
    assert_eq!(finish(&Combine::Concat { cap: 1 }, Value::Nil), list([]));
    assert_eq!(finish(&Combine::Histogram { bounds: vec![1.0] }, Value::Nil), list([0.into(), 0.into()]));
}

#[test]
fn histograms_put_a_bound_into_the_next_bucket() {
    let combine = Combine::Histogram { bounds: vec![1.0, 10.0] };
    let numbers = [0.into(), 1.into(), Value::Float(0.99), Value::Float(10.0), Value::Float(f64::NAN)];
    let acc = folded(&combine, [list(numbers), map(&[])]).unwrap();
    assert_eq!(finish(&combine, acc), list([2.into(), 1.into(), 2.into()]));
}

#[test]
fn members_may_be_whole_numbers_and_sets_may_be_tables() {
    let union = Combine::Union { cap: 10 };
    let acc = folded(
        &union,
        [list([7.into(), "a".into()]), map(&[("7", Value::Bool(true)), ("b", Value::Bool(true))])],
    );
    assert_eq!(finish(&union, acc.unwrap()), strings(&["7", "a", "b"]));
    let top = folded(&Combine::TopK { k: 2 }, [list([list([1.into(), 5.into()])])]);
    assert_eq!(top, Ok(list([pair(1.into(), "5")])));
}

#[test]
fn estimates_are_those_of_redis() {
    // PFADD h m:0 … m:(n-1), PFCOUNT h on Redis 8.2.3, whose HyperLogLog has precision 14.
    let combine = Combine::Hll { precision: 14 };
    for (n, counted) in PFCOUNT {
        let members = (0..n).map(|i| Value::from(format!("m:{i}").as_str()));
        let acc = folded(&combine, [list(members)]).unwrap();
        assert_eq!(finish(&combine, acc), counted.into(), "{n} members");
    }
}

const PFCOUNT: [(u32, i64); 5] = [(1, 1), (10, 10), (1_000, 1_003), (20_000, 19_828), (200_000, 200_492)];

/// A combiner and a strategy for what its steps return.
fn combiners() -> impl Strategy<Value = (Combine, Vec<Value>)> {
    fn deltas(combine: Combine, one: BoxedStrategy<Value>) -> BoxedStrategy<(Combine, Vec<Value>)> {
        let one = prop_oneof![9 => one, 1 => Just(Value::Nil)];
        proptest::collection::vec(one, 0..7).prop_map(move |deltas| (combine.clone(), deltas)).boxed()
    }
    fn lists(element: impl Strategy<Value = Value> + 'static) -> BoxedStrategy<Value> {
        proptest::collection::vec(element, 0..9).prop_map(Value::List).boxed()
    }
    fn tables(element: BoxedStrategy<Value>) -> BoxedStrategy<Value> {
        let keyed = proptest::collection::btree_map("[a-c1-4]", element.clone(), 0..5).prop_map(|map| {
            let entries = map.into_iter().map(|(key, value)| (key.into_bytes(), value));
            Value::Map(entries.collect::<BTreeMap<_, _>>())
        });
        prop_oneof![keyed, lists(element)].boxed()
    }
    // Halves add exactly, so that even sums of floats do not depend on the order.
    let number = || {
        prop_oneof![(-9..9i64).prop_map(Value::Int), (-9..9i64).prop_map(|n| Value::Float(n as f64 / 2.0))]
    };
    let text = || "[a-e]{0,2}".prop_map(|text| Value::from(text.as_str()));
    let scored = (number(), text()).prop_map(|(score, member)| list([score, member]));
    let set = move || prop_oneof![lists(text()), tables(Just(Value::Bool(true)).boxed())];
    prop_oneof![
        deltas(Combine::Sum, number().boxed()),
        deltas(Combine::Sum, tables(number().boxed())),
        deltas(Combine::Min, prop_oneof![tables(number().boxed())].boxed()),
        deltas(Combine::Min, text().boxed()),
        deltas(Combine::Max, tables(text().boxed())),
        deltas(Combine::Max, number().boxed()),
        deltas(Combine::TopK { k: 3 }, lists(scored)),
        deltas(Combine::Union { cap: 1_000 }, lists(text())),
        deltas(Combine::Hll { precision: 4 }, lists(text())),
        deltas(Combine::Histogram { bounds: vec![-2.0, 0.5, 3.0] }, lists(number())),
        deltas(Combine::Concat { cap: 1_000 }, lists(number())),
    ]
    .prop_flat_map(move |(combine, deltas)| {
        // Sets in both of their forms.
        let sets = proptest::collection::vec(set(), 0..7);
        (Just(combine), Just(deltas), sets).prop_map(|(combine, deltas, sets)| match combine {
            Combine::Union { .. } => (combine, sets.into_iter().filter(is_set_of_text).collect()),
            combine => (combine, deltas),
        })
    })
}

fn is_set_of_text(value: &Value) -> bool {
    match value {
        Value::List(list) => list.iter().all(|member| matches!(member, Value::Bytes(_))),
        _ => true,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn folds_are_associative((combine, deltas) in combiners(), cuts in (0..8usize, 0..8usize)) {
        let whole = folded(&combine, deltas.clone()).unwrap();
        let cut = cuts.0.min(deltas.len());
        let (left, right) = deltas.split_at(cut);
        let (middle, right) = right.split_at(cuts.1.min(right.len()));
        let parts = [left, middle, right].map(|part| folded(&combine, part.to_vec()).unwrap());
        let [left, middle, right] = parts;
        let tail = fold(&combine, middle, right).unwrap();
        prop_assert_eq!(fold(&combine, left, tail).unwrap(), whole);
    }

    #[test]
    fn folds_are_commutative((combine, deltas) in combiners(), seed in any::<u64>()) {
        prop_assume!(!matches!(combine, Combine::Concat { .. }));
        let mut shuffled = deltas.clone();
        fastrand::Rng::with_seed(seed).shuffle(&mut shuffled);
        let folded = |deltas| finish(&combine, folded(&combine, deltas).unwrap());
        prop_assert_eq!(folded(shuffled), folded(deltas));
    }

    #[test]
    fn nil_is_the_identity((combine, deltas) in combiners()) {
        let acc = folded(&combine, deltas).unwrap();
        prop_assert_eq!(fold(&combine, acc.clone(), Value::Nil).unwrap(), acc.clone());
        prop_assert_eq!(fold(&combine, Value::Nil, acc.clone()).unwrap(), acc);
    }

    #[test]
    fn top_k_is_the_head_of_the_sorted_whole(scores in proptest::collection::vec((-5..5i64, "[a-c]"), 0..40), k in 1..9u32) {
        let deltas: Vec<Value> = scores
            .chunks(7)
            .map(|chunk| list(chunk.iter().map(|(score, member)| pair((*score).into(), member))))
            .collect();
        let acc = finish(&Combine::TopK { k }, folded(&Combine::TopK { k }, deltas).unwrap());
        let mut sorted = scores;
        sorted.sort_by(|(a, x), (b, y)| b.cmp(a).then(x.cmp(y)));
        let best = sorted.iter().take(k as usize).map(|(score, member)| pair((*score).into(), member));
        prop_assert_eq!(acc, list(best));
    }

    #[test]
    fn any_value_folds_or_is_refused_and_never_panics(
        (_, values) in combiners(), (_, more) in combiners(), (combine, _) in combiners()
    ) {
        let mut acc = Value::Nil;
        for delta in values.into_iter().chain(more) {
            let before = acc.clone();
            if fold_into(&combine, &mut acc, delta).is_err() {
                prop_assert_eq!(&acc, &before);
            }
            finish(&combine, before);
        }
    }
}
