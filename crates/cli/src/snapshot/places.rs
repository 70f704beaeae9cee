//! What a page of guest memory is in its guest: the page tables tell which address leads to it, the document what lies
//! there.
//!
//! Both may be anybody's. The library checks them where they are used; here they only give names, so that what is not as it
//! should be has a wrong name at worst. Each table is read once, and not more than [`TABLES_MAX`] of them.

use std::collections::{HashMap, HashSet};

use coracle::store::Pages;
use coracle_abi::{PAGE_BYTES, PageBytes, map};
use coracle_vm::Space;
use coracle_vm::paging::Entry;

use super::Document;

/// Names of some pages.
#[derive(Default)]
pub(super) struct Places {
    /// Where each is mapped.
    addresses: HashMap<u32, u64>,
    tables: HashSet<u32>,
    /// Whether there were more tables.
    is_cut: bool,
    areas: Areas,
}

/// Places of the host's making, and the guest's areas by their start.
#[derive(Default)]
struct Areas {
    known: Vec<Area>,
    others: Vec<Area>,
}

struct Area {
    start: u64,
    end: u64,
    name: String,
}

/// As many as map 128 GiB.
const TABLES_MAX: usize = 1 << 16;
/// Tables are at this level from the root, which is level 3, to those that point to pages, level 0.
const LEVELS: u32 = 3;
const ENTRIES: u64 = 512;
const PRESENT: u64 = 1;
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;

impl Places {
    /// Names of the pages `wanted`, which ascend.
    pub(super) fn of(document: &Document, pages: &Pages, wanted: &[u32]) -> Self {
        let mut places = Self { areas: Areas::of(document), ..Self::default() };
        let mut waiting = vec![(Space::ROOT.0, LEVELS, 0)];
        while let Some((table, level, start)) = waiting.pop() {
            let mut bytes = [0; PAGE_BYTES as usize];
            if places.tables.len() == TABLES_MAX {
                places.is_cut = true;
                break;
            }
            if !places.tables.insert(table) || pages.copy_page(table, &mut bytes).is_err() {
                continue;
            }
            for (entry, number) in bytes.as_chunks::<8>().0.iter().zip(0..ENTRIES) {
                let entry = u64::from_le_bytes(*entry);
                let address = start | number << (12 + 9 * level);
                if level > 0 {
                    let below = u32::try_from((entry & ADDRESS) / PAGE_BYTES);
                    if let Ok(below) = below
                        && entry & PRESENT != 0
                    {
                        waiting.push((below, level - 1, address));
                    }
                } else if let Some(frame) = Entry(entry).frame()
                    && wanted.binary_search(&frame.0).is_ok()
                {
                    places.addresses.insert(frame.0, address);
                }
            }
        }
        places
    }

    /// What a page is, in a few words.
    pub(super) fn name(&self, page: u32) -> &str {
        match self.addresses.get(&page) {
            _ if self.tables.contains(&page) => "page table",
            Some(address) => self.areas.name(*address),
            None if self.is_cut => "unknown",
            None => "not in use",
        }
    }
}

impl Areas {
    fn of(document: &Document) -> Self {
        let place = |pointer: &str, name: &str| {
            let start = document.number(&format!("{pointer}/0"))?;
            let bytes = document.number(&format!("{pointer}/1"))?;
            Some(Area { start, end: start.saturating_add(bytes), name: name.to_owned() })
        };
        let known = [
            Some(Area { start: map::CONTROL_START, end: map::WINDOW_END, name: "the host's own".to_owned() }),
            place("/stack", "stack"),
            place("/transport/small", "transport, small messages to the guest"),
            place("/transport/area", "transport"),
            place("/transport/large/0", "transport, large messages to the host"),
            place("/transport/large/1", "transport, large messages to the guest"),
        ];
        let heap = document.number("/limits/heap").and_then(PageBytes::round_up);
        let others = document.list("/space/areas").iter().filter_map(|area| {
            let (start, end, rights) = (area["start"].as_u64()?, area["end"].as_u64()?, area["rights"].as_str()?);
            // Nothing marks it but its size and where it begins, if it is not too large to begin there.
            let is_heap =
                start == map::IMAGE_END && heap.is_some_and(|heap| Some(heap.get()) == end.checked_sub(start));
            let name = if is_heap { "heap".to_owned() } else { format!("area at {start:#x}, {rights}") };
            Some(Area { start, end, name })
        });
        let mut others: Vec<Area> = others.collect();
        others.sort_by_key(|area| area.start);
        Self { known: known.into_iter().flatten().collect(), others }
    }

    fn name(&self, address: u64) -> &str {
        let below = self.others.partition_point(|area| area.start <= address);
        let mut candidates = self.known.iter().chain(self.others[..below].last());
        let found = candidates.find(|area| (area.start..area.end).contains(&address));
        found.map_or("in no area", |area| &area.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use coracle_vm::Rights;
    use coracle_vm::paging::{Frame, Level};

    fn table(entries: &[(usize, u64)]) -> [u8; 4096] {
        let mut bytes = [0; 4096];
        for (number, entry) in entries {
            bytes[8 * number..8 * number + 8].copy_from_slice(&entry.to_le_bytes());
        }
        bytes
    }

    #[test]
    fn pages_have_the_names_of_their_areas() {
        let document = br#"{"stack":[4096,4096],"space":{"areas":[{"start":0,"end":12288,"rights":"rw-"}]}}"#;
        let leaf = |frame| Entry::new(Frame(frame), Rights::RW, Level::User).0;
        // The root's second entry points back to it.
        let pages = Pages::base([
            (0, table(&[(0, 0x1000 | PRESENT), (1, PRESENT)])),
            (1, table(&[(0, 0x2000 | PRESENT)])),
            (2, table(&[(0, 0x3000 | PRESENT), (1, ADDRESS | PRESENT)])),
            (3, table(&[(0, leaf(7)), (1, leaf(8)), (9, leaf(9))])),
        ]);
        let places = Places::of(&Document::parse(document).unwrap(), &pages, &[0, 3, 7, 8, 9, 10]);
        let names = [0, 3, 7, 8, 9, 10].map(|page| places.name(page));
        assert_eq!(names, ["page table", "page table", "area at 0x0, rw-", "stack", "in no area", "not in use"]);
    }

    #[test]
    fn the_heap_is_known_by_its_place_and_size() {
        let named = |end: u64| {
            let area = format!("{{\"start\":{},\"end\":{end},\"rights\":\"rw-\"}}", map::IMAGE_END);
            let document = format!("{{\"limits\":{{\"heap\":5000}},\"space\":{{\"areas\":[{area}]}}}}");
            Areas::of(&Document::parse(document.as_bytes()).unwrap()).others.pop().unwrap().name
        };
        assert_eq!(named(map::IMAGE_END + 8192), "heap");
        assert!(named(map::IMAGE_END + 4096).starts_with("area at 0x7fffa0000000"));
        assert!(named(0).starts_with("area at"));
    }

    #[test]
    fn what_is_no_page_table_gives_no_names() {
        let pages = Pages::base([(0, [0xff; 4096])]);
        let places = Places::of(&Document::parse(b"{}").unwrap(), &pages, &[5]);
        assert_eq!(places.name(5), "not in use");
    }

    #[test]
    fn no_more_tables_are_read_than_the_limit() {
        // Each entry of each table leads to another page.
        let links =
            |first: u32| table(&(0..512).map(|n| (n, u64::from(first + n as u32) << 12 | PRESENT)).collect::<Vec<_>>());
        let pages = Pages::base((0..513).map(|number| (number, links(1 + 512 * number))));
        let places = Places::of(&Document::parse(b"{}").unwrap(), &pages, &[5]);
        assert_eq!((places.tables.len(), places.is_cut), (TABLES_MAX, true));
        assert_eq!(places.name(1 << 20), "unknown");
    }
}
