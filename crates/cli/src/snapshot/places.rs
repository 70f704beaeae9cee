//! What a page of guest memory is in its guest: the page tables tell which address leads to it, the document what lies
//! there.
//!
//! Both may be anybody's. The library checks them where they are used; here they only give names, so that what is not as it
//! should be has no name. Each table is read once.

use std::collections::{HashMap, HashSet};

use coracle::store::Pages;
use coracle_abi::{PAGE_BYTES, map};
use coracle_vm::Space;
use coracle_vm::paging::Entry;

use super::Document;

/// Names of pages.
#[derive(Default)]
pub(super) struct Places {
    /// Where each is mapped.
    addresses: HashMap<u32, u64>,
    tables: HashSet<u32>,
    /// Start, end and name.
    areas: Vec<(u64, u64, String)>,
}

/// Tables are at this level from the root, which is level 3, to those that point to pages, level 0.
const LEVELS: u32 = 3;
const ENTRIES: u64 = 512;
const PRESENT: u64 = 1;
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;

impl Places {
    pub(super) fn of(document: &Document, pages: &Pages) -> Self {
        let mut places = Self { areas: areas(document), ..Self::default() };
        let mut waiting = vec![(Space::ROOT.0, LEVELS, 0)];
        while let Some((table, level, start)) = waiting.pop() {
            let mut bytes = [0; PAGE_BYTES as usize];
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
                } else if let Some(frame) = Entry(entry).frame() {
                    places.addresses.insert(frame.0, address);
                }
            }
        }
        places
    }

    /// What a page is, in a few words.
    pub(super) fn name(&self, page: u32) -> String {
        if self.tables.contains(&page) {
            return "page table".to_owned();
        }
        let Some(address) = self.addresses.get(&page) else { return "not in use".to_owned() };
        let area = self.areas.iter().find(|(start, end, _)| (start..end).contains(&address));
        area.map_or("in no area".to_owned(), |(.., name)| name.clone())
    }
}

/// The first that has an address names it.
fn areas(document: &Document) -> Vec<(u64, u64, String)> {
    let place = |pointer: &str, name: &str| {
        let start = document.number(&format!("{pointer}/0"))?;
        let bytes = document.number(&format!("{pointer}/1"))?;
        Some((start, start.saturating_add(bytes), name.to_owned()))
    };
    let known = [
        Some((map::CONTROL_START, map::WINDOW_END, "the host's own".to_owned())),
        place("/stack", "stack"),
        place("/transport/0", "transport, inbound"),
        place("/transport/1", "transport, outbound"),
        place("/transport/2", "transport, log"),
    ];
    let others = document.list("/space/areas").iter().filter_map(|area| {
        let (start, end, rights) = (area["start"].as_u64()?, area["end"].as_u64()?, area["rights"].as_str()?);
        Some((start, end, format!("area at {start:#x}, {rights}")))
    });
    known.into_iter().flatten().chain(others).collect()
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
        let places = Places::of(&Document::parse(document).unwrap(), &pages);
        let names: Vec<String> = [0, 3, 7, 8, 9, 10].map(|page| places.name(page)).into();
        assert_eq!(names, ["page table", "page table", "area at 0x0, rw-", "stack", "in no area", "not in use"]);
    }

    #[test]
    fn what_is_no_page_table_gives_no_names() {
        let pages = Pages::base([(0, [0xff; 4096])]);
        let places = Places::of(&Document::parse(b"{}").unwrap(), &pages);
        assert_eq!(places.name(5), "not in use");
    }
}
