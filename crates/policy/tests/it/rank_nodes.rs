//! Policies that name rank programs: what is shown of them, and what counts as a change.

use plimsoll_policy::{Checked, check_with, cost, diff};

const POLICY: &str = "{uplink: {port: memory, rate: 10Gbps}, tenants: {shop: {port: memory, weight: 3}}, \
    policy: {root: {program: {module: order.rank, children: [shop]}}}}";

fn checked(text: &str) -> Checked {
    let mut load = |name: &str| Ok(if name == "p.yaml" { POLICY } else { text }.to_owned());
    check_with("p.yaml", &mut load).unwrap_or_else(|errors| panic!("{}", errors.render(false)))
}

#[test]
fn another_text_of_a_program_is_a_change_and_other_comments_are_none() {
    let one = checked("enqueue { rank = now }");
    assert!(diff(&one, &checked("# by arrival\nenqueue { rank = now }")).is_empty());
    let changes = diff(&one, &checked("enqueue { rank = packet.remaining }")).to_string();
    assert!(changes.starts_with("~ class root: text ") && changes.lines().count() == 1, "{changes}");
}

#[test]
fn a_programs_instructions_count_in_the_estimate() {
    let [short, long] = ["enqueue { rank = now }", "enqueue { rank = now * now * now * now + now / 3 % 7 }"]
        .map(|text| cost(&checked(text).program)[0].packet);
    assert!(long > short, "{long} and {short}");
}

#[test]
fn a_tenants_weight_below_a_program_is_one_that_the_program_reads() {
    let checked = checked("enqueue { rank = now / class.weight }");
    assert!(checked.warnings.is_empty(), "{}", checked.render_warnings(false));
    let shop = checked.program.find("shop").expect("a class");
    assert_eq!(checked.program.node(shop).weight, 3);
}
