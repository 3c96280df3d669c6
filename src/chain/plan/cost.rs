//! What a hop costs: the way to the node, and how busy the node is.

use std::collections::HashMap;

use super::PlanInput;
use super::share::Drive;

/// One unit of cost: the round trip within a rack that is assumed where none was measured.
pub(super) const UNIT_MICROS: f64 = 100.0;
const SAME_RACK: f32 = 1.0;
const SAME_ZONE: f32 = 2.0;
const OTHER_ZONE: f32 = 10.0;

/// Where something is. Names mean nothing but whether they are equal; racks of different zones are different.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Place {
    /// The availability zone. What is in no known zone counts as being in every one, in another rack.
    pub zone: Option<String>,
    /// The rack or host within it.
    pub rack: Option<String>,
}

/// How busy a node is.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Load {
    /// Share of its core (0 to 1).
    pub cpu: f64,
    /// Share of its memory limit (0 to 1; 0 without one).
    pub memory: f64,
    /// Share of its client limit (0 to 1).
    pub connections: f64,
    /// Commands per second.
    pub ops_per_sec: f64,
    /// Hops that wait at its agent.
    pub queue: u32,
}

/// Commands per second at which a node is assumed to be fully busy, where its CPU is not known.
const FULL_OPS: f64 = 100_000.0;

impl Load {
    /// What is added to the cost of a hop to this node. Grows with every part of the load.
    pub fn penalty(&self) -> f64 {
        4.0 * share(self.cpu)
            + share(self.memory)
            + share(self.connections)
            + 2.0 * positive(self.ops_per_sec) / FULL_OPS
            + 0.5 * f64::from(self.queue)
    }

    /// How much of what it can do it is doing, for the watermark. Memory does not count: a cache is meant to be full.
    pub fn pressure(&self) -> f64 {
        share(self.cpu).max(share(self.ops_per_sec / FULL_OPS))
    }
}

fn positive(number: f64) -> f64 {
    if number.is_finite() { number.max(0.0) } else { 0.0 }
}

fn share(number: f64) -> f64 {
    positive(number).min(1.0)
}

/// A measured round trip. It is the same in both directions; of several for one pair the last one counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Link {
    /// From the agent of this node (into [`PlanInput::nodes`]); `None`: from the coordinator.
    pub from: Option<u16>,
    /// To the agent of this node.
    pub to: u16,
    /// There and back.
    pub micros: u32,
}

/// The way to a hop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// The state stays in the process.
    SameProcess,
    /// Within a rack.
    SameRack,
    /// Within a zone.
    SameZone,
    /// One of the two is in no known zone; costs what a way within a zone does.
    Unplaced,
    /// Between zones.
    OtherZone,
    /// Measured, microseconds there and back.
    Measured(u32),
}

impl Reach {
    fn cost(self) -> f32 {
        match self {
            Reach::SameProcess => 0.0,
            Reach::SameRack => SAME_RACK,
            Reach::SameZone | Reach::Unplaced => SAME_ZONE,
            Reach::OtherZone => OTHER_ZONE,
            Reach::Measured(micros) => micros as f32 / UNIT_MICROS as f32,
        }
    }
}

/// All distances and loads of one plan. Points are the nodes by their number in the input, then the coordinator.
///
/// A hop happens where its driver is, so that is where a node's point lies; the way from a remote driver to the
/// node is part of the node's own cost, whatever the order.
pub(super) struct Costs {
    coordinator: usize,
    sites: Vec<Site>,
    /// The ways between all nodes and the coordinator, row by row; those that are not measured but assumed are
    /// negative. Empty: none is measured.
    table: Vec<f32>,
    load: Vec<f64>,
    drive: Vec<f64>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct Site {
    /// Who is there: nodes with the same driver are at the same one.
    id: u32,
    zone: u32,
    rack: u32,
}

/// Sites side by side, so that many are compared at once.
pub(super) struct Sites {
    ids: Vec<u32>,
    zones: Vec<u32>,
    racks: Vec<u32>,
}

impl Sites {
    pub(super) fn swap_remove(&mut self, place: usize) {
        for column in [&mut self.ids, &mut self.zones, &mut self.racks] {
            column.swap_remove(place);
        }
    }
}

impl Site {
    fn reach(&self, other: &Site) -> Reach {
        match (self.zone == other.zone, self.rack == other.rack && self.rack != 0) {
            _ if self.id == other.id => Reach::SameProcess,
            (true, true) => Reach::SameRack,
            _ if self.zone == 0 || other.zone == 0 => Reach::Unplaced,
            (true, false) => Reach::SameZone,
            (false, _) => Reach::OtherZone,
        }
    }

    /// The cost of [`Site::reach`], without a jump.
    fn way(&self, other: &Site) -> f32 {
        let same_zone = self.zone == other.zone;
        let same_rack = same_zone & (self.rack == other.rack) & (self.rack != 0);
        let unplaced = (self.zone == 0) | (other.zone == 0);
        let apart = if same_zone | unplaced { SAME_ZONE } else { OTHER_ZONE };
        let way = if same_rack { SAME_RACK } else { apart };
        if self.id == other.id { 0.0 } else { way }
    }
}

impl Costs {
    pub(super) fn new(input: &PlanInput, drivers: &[Drive]) -> Self {
        let coordinator = input.nodes.len();
        let mut names = Names::default();
        let here = names.site(coordinator, &input.coordinator);
        let at: Vec<Site> =
            input.nodes.iter().enumerate().map(|(index, node)| names.site(index, &node.place)).collect();
        let sites: Vec<Site> = drivers
            .iter()
            .enumerate()
            .map(|(node, drive)| match drive {
                Drive::Beside => at[node],
                Drive::By(agent) => at[*agent],
                // Its place is not known: it counts as being in every zone.
                Drive::Foreign(agent) => Site { id: (coordinator + 1 + agent) as u32, zone: 0, rack: 0 },
                Drive::Direct => here,
            })
            .chain([here])
            .collect();
        let points: Vec<Site> = at.iter().copied().chain([here]).collect();
        let mut costs = Costs {
            coordinator,
            table: table(input, &points),
            sites: points,
            load: input.nodes.iter().map(|node| node.load.penalty()).collect(),
            drive: Vec::new(),
        };
        // From where the driver is to the node itself.
        costs.drive = (0..coordinator)
            .map(|node| match drivers[node] {
                Drive::Beside => 0.0,
                Drive::By(agent) => f64::from(costs.way(agent, node)),
                Drive::Foreign(_) => f64::from(SAME_ZONE),
                Drive::Direct => f64::from(costs.way(coordinator, node)),
            })
            .collect();
        costs.sites = sites;
        costs
    }

    pub(super) fn coordinator(&self) -> usize {
        self.coordinator
    }

    /// How the state gets from one point to another. The same in both directions.
    pub(super) fn reach(&self, from: usize, to: usize) -> Reach {
        let (a, b) = (self.sites[from], self.sites[to]);
        if a.id != b.id
            && let Some(way) = self.row(a).get(b.id as usize)
            && way.is_sign_positive()
        {
            return Reach::Measured((f64::from(*way) * UNIT_MICROS).round() as u32);
        }
        a.reach(&b)
    }

    /// What of the table is about this site; nothing is for an agent beside no node.
    fn row(&self, site: Site) -> &[f32] {
        let size = self.coordinator + 1;
        let start = site.id as usize * size;
        self.table.get(start..start + size).unwrap_or_default()
    }

    /// The cost of [`Costs::reach`].
    pub(super) fn way(&self, from: usize, to: usize) -> f32 {
        let (a, b) = (self.sites[from], self.sites[to]);
        self.row(a).get(b.id as usize).map_or_else(|| a.way(&b), |way| way.abs())
    }

    /// The sites of these points, for [`Costs::ways`].
    pub(super) fn sites_of(&self, points: impl Iterator<Item = usize> + Clone) -> Sites {
        let of = |part: fn(&Site) -> u32| points.clone().map(|point| part(&self.sites[point])).collect();
        Sites { ids: of(|site| site.id), zones: of(|site| site.zone), racks: of(|site| site.rack) }
    }

    /// The ways from one point to others, into `ways`. Made a million times for a thousand nodes.
    pub(super) fn ways(&self, from: usize, to: &Sites, ways: &mut Vec<f32>) {
        let from = self.sites[from];
        let row = self.row(from);
        let assumed =
            |((id, zone), rack): ((&u32, &u32), &u32)| from.way(&Site { id: *id, zone: *zone, rack: *rack });
        let sites = to.ids.iter().zip(&to.zones).zip(&to.racks);
        ways.clear();
        if row.is_empty() {
            ways.extend(sites.map(assumed));
        } else {
            ways.extend(
                sites.map(|site| row.get(*site.0.0 as usize).map_or_else(|| assumed(site), |way| way.abs())),
            );
        }
    }

    /// What a node's load adds to its hop.
    pub(super) fn load(&self, node: usize) -> f64 {
        self.load[node]
    }

    /// The way from a node's driver to the node, in cost units.
    pub(super) fn drive(&self, node: usize) -> f64 {
        self.drive[node]
    }

    /// What a hop to a node costs.
    pub(super) fn hop(&self, from: usize, to: usize) -> f64 {
        f64::from(self.way(from, to)) + self.load[to] + self.drive[to]
    }
}

/// [`Costs::table`] for these sites: those of the nodes, then the coordinator's.
fn table(input: &PlanInput, sites: &[Site]) -> Vec<f32> {
    if input.links.is_empty() {
        return Vec::new();
    }
    let coordinator = input.nodes.len();
    let size = coordinator + 1;
    // One half first, and then the other from it in blocks: columns are slow to go along.
    let mut table = vec![f32::NAN; size * size];
    for link in &input.links {
        let (a, b) = (link.from.map_or(coordinator, usize::from), usize::from(link.to));
        if a <= coordinator && b < coordinator && a != b {
            table[a.min(b) * size + a.max(b)] = Reach::Measured(link.micros).cost();
        }
    }
    const BLOCK: usize = 32;
    for rows in (0..size).step_by(BLOCK) {
        for columns in (rows..size).step_by(BLOCK) {
            for row in rows..(rows + BLOCK).min(size) {
                for column in columns.max(row)..(columns + BLOCK).min(size) {
                    let way = &mut table[row * size + column];
                    if way.is_nan() {
                        *way = -sites[row].way(&sites[column]);
                    }
                    table[column * size + row] = table[row * size + column];
                }
            }
        }
    }
    table
}

/// Numbers for the names of zones and racks; 0 is unknown.
#[derive(Default)]
struct Names<'a> {
    zones: HashMap<&'a str, u32>,
    racks: HashMap<(u32, &'a str), u32>,
}

impl<'a> Names<'a> {
    fn site(&mut self, id: usize, place: &'a Place) -> Site {
        let next = self.zones.len() as u32 + 1;
        let zone = place.zone.as_deref().map_or(0, |zone| *self.zones.entry(zone).or_insert(next));
        let next = self.racks.len() as u32 + 1;
        let rack = place.rack.as_deref().map_or(0, |rack| *self.racks.entry((zone, rack)).or_insert(next));
        Site { id: id as u32, zone, rack }
    }
}
