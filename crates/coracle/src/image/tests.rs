//! What is accepted, what is refused and why, and that no bytes make the parser panic.

use std::fs;

use coracle_abi::map;
use coracle_vm::Rights;

use super::builder::*;
use super::{Fault, Image, Linkage, ProgramHeaders, Segment};

#[track_caller]
fn accept(elf: &Elf) -> Image {
    Image::from_bytes(elf.bytes()).unwrap()
}

#[track_caller]
fn refuse(elf: &Elf, fault: Fault) {
    let error = Image::from_bytes(elf.bytes()).expect_err("this image is wrong");
    assert_eq!(error.fault(), fault, "{error}");
}

/// [`Elf::fixed`] with other segments; the first byte of the first one is the entry.
fn with_segments(segments: impl Into<Vec<Header>>) -> Elf {
    let headers = segments.into();
    Elf { entry: headers[0].address, headers, parts: vec![(0x5fff, vec![0])], ..Elf::fixed() }
}

fn position_independent(segments: impl Into<Vec<Header>>) -> Elf {
    Elf { file_type: 3, ..with_segments(segments) }
}

/// Everything that can be asked of an image. What it answers is checked elsewhere.
fn touch(image: &Image) {
    for segment in image.segments() {
        assert!(segment.file.len() as u64 <= segment.memory_bytes);
        assert!(image.bytes().get(segment.file.clone()).is_some());
        assert!(image.extent().start <= segment.page_range().start && segment.page_range().end <= image.extent().end);
        assert!(!(segment.rights.write && segment.rights.execute));
        image.symbol(segment.address + segment.memory_bytes - 1);
    }
    if image.linkage() == Linkage::PositionIndependent {
        let start = image.extent().start.wrapping_add(image.load_bias());
        let end = image.extent().end.wrapping_add(image.load_bias());
        assert!(map::IMAGE_BASE <= start && start < end && end < map::IMAGE_END);
    }
    image.symbol(image.entry());
    image.symbol(0);
    image.symbol(u64::MAX);
    image.notes().for_each(drop);
    let _ = (image.program_headers(), image.relro(), image.name(), format!("{image:?}"));
}

#[test]
fn a_fixed_image_is_what_its_headers_say() {
    let image = accept(&Elf::fixed());
    assert_eq!(image.linkage(), Linkage::Fixed);
    assert_eq!(image.entry(), 0x40_0200);
    assert_eq!(image.extent(), 0x40_0000..0x40_4000);
    assert_eq!(image.load_bias(), 0);
    assert_eq!(image.name(), None);
    assert_eq!(image.relro(), None);
    assert_eq!(image.bytes(), Elf::fixed().bytes());
    let code = Segment { address: 0x40_0000, memory_bytes: 0x208, file: 0..0x208, rights: Rights::RX };
    let data = Segment { address: 0x40_1208, memory_bytes: 0x2000, file: 0x208..0x218, rights: Rights::RW };
    assert_eq!(image.segments(), [code, data]);
    let headers = ProgramHeaders { address: Some(0x40_0040), count: 3, entry_bytes: 56 };
    assert_eq!(image.program_headers(), headers);
}

#[test]
fn a_position_independent_image_moves_to_the_window() {
    let image = accept(&Elf::position_independent());
    assert_eq!(image.linkage(), Linkage::PositionIndependent);
    assert_eq!(image.extent(), 0..0x4000);
    assert_eq!(image.load_bias(), map::IMAGE_BASE);
    assert_eq!(image.program_headers().address, Some(0x40));
}

#[test]
fn a_position_independent_image_may_be_linked_anywhere() {
    for base in [0, 0x1000, 0x40_0000, map::WINDOW_START, map::HIGHEST, !0xffff] {
        let image = accept(&Elf { entry: base + 8, ..position_independent([Header::load(RX, 0, base, 0x300)]) });
        assert_eq!(image.extent().start.wrapping_add(image.load_bias()), map::IMAGE_BASE);
        touch(&image);
    }
}

#[test]
fn a_moved_image_keeps_the_alignment_that_its_segments_ask_for() {
    let code = Header { alignment: 2 << 20, ..Header::load(RX, 0, 0x30_3000, 0x300) };
    let image = accept(&position_independent([code]));
    assert_eq!(image.load_bias(), map::IMAGE_BASE - 0x20_0000);
    let code = Header { alignment: 1 << 40, ..code };
    refuse(&position_independent([code]), Fault::BadSegment);
}

#[test]
fn segments_come_sorted_and_empty_ones_not_at_all() {
    let empty = Header { alignment: 3, ..Header::load(RX, u64::MAX, u64::MAX, 0) };
    let code = Header::load(RX, 0, 0x50_0000, 0x300);
    let image = accept(&with_segments([code, Header::load(R, 0, 0x40_0000, 0x10), empty]));
    let addresses: Vec<u64> = image.segments().iter().map(|segment| segment.address).collect();
    assert_eq!(addresses, [0x40_0000, 0x50_0000]);
}

#[test]
fn odd_but_legal_segments_are_accepted() {
    let code = Header::load(RX, 0, 0x40_0000, 0x300);
    let legal = [
        ("alignment 0", Header { alignment: 0, ..Header::load(R, 0x1234, 0x50_1234, 1) }),
        ("alignment 1", Header { alignment: 1, ..Header::load(R, 0x1233, 0x50_1233, 7) }),
        ("alignment 64 KiB", Header { alignment: 1 << 16, ..Header::load(R, 0x1000, 0x50_1000, 7) }),
        ("a last byte at a page's end", Header::load(R, 0xff0, 0x50_0ff0, 0x10)),
        ("zeros only", Header::zeros(RW, 0x50_0008, 0x1_0000)),
        ("zeros only, offset beyond the file", Header { offset: 0x1_0001, ..Header::zeros(RW, 0x50_0000, 8) }),
        ("16 GiB of zeros but for the rest", Header::zeros(RW, 0x50_0000, (16 << 30) - 0x300)),
        ("no rights", Header::load(0, 0, 0x50_0000, 8)),
        ("lowest address", Header::load(R, 0, map::LOWEST, 8)),
        ("up to the window", Header::zeros(RW, map::WINDOW_START - 8, 8)),
        ("right after the window", Header::zeros(RW, map::WINDOW_END, 8)),
        ("highest address", Header::zeros(RW, map::HIGHEST - 8, 8)),
    ];
    for (name, segment) in legal {
        let image = Image::from_bytes(with_segments([code, segment]).bytes());
        touch(&image.unwrap_or_else(|error| panic!("{name}: {error}")));
    }
}

#[test]
fn an_image_may_be_nothing_but_zeros() {
    let image = accept(&with_segments([Header::zeros(RX, 0x40_0000, 8)]));
    assert_eq!(image.segments()[0].file, 0..0);
    assert_eq!(image.program_headers().address, None);
}

#[test]
fn rights_are_those_that_the_processor_can_give() {
    let rights = |flags| {
        accept(&with_segments([Header::load(RX, 0, 0x40_0000, 8), Header::load(flags, 0, 0x50_0000, 8)])).segments()[1]
            .rights
    };
    assert_eq!(rights(4), Rights::R);
    assert_eq!(rights(2), Rights::RW);
    assert_eq!(rights(1), Rights::RX);
    assert_eq!(rights(0), Rights::NONE);
    assert_eq!(rights(0x8000_0004), Rights::R);
}

#[test]
fn each_wrong_header_field_has_its_fault() {
    type Change = fn(&mut Elf);
    let table: [(Fault, Change); 20] = [
        (Fault::NotElf, |elf| elf.ident[0] = 0x7e),
        (Fault::NotElf, |elf| elf.ident[6] = 2),
        (Fault::WrongClass, |elf| elf.ident[4] = 1),
        (Fault::WrongClass, |elf| elf.ident[4] = 3),
        (Fault::WrongEndian, |elf| elf.ident[5] = 2),
        (Fault::WrongArchitecture, |elf| elf.machine = 183),
        (Fault::WrongArchitecture, |elf| elf.machine = 3),
        (Fault::WrongType, |elf| elf.file_type = 0),
        (Fault::WrongType, |elf| elf.file_type = 1),
        (Fault::WrongType, |elf| elf.file_type = 4),
        (Fault::HeaderCount, |elf| elf.header_count = Some(1025)),
        (Fault::HeaderCount, |elf| elf.header_count = Some(0xffff)),
        (Fault::HeaderCount, |elf| elf.header_bytes = 32),
        (Fault::Truncated, |elf| elf.header_count = Some(1024)),
        (Fault::Truncated, |elf| elf.header_count = Some(9)),
        (Fault::NoSegments, |elf| elf.header_count = Some(0)),
        (Fault::NoSegments, |elf| elf.headers.clear()),
        (Fault::EntryOutside, |elf| elf.entry = 0),
        (Fault::EntryOutside, |elf| elf.entry = 0x40_0208),
        (Fault::EntryOutside, |elf| elf.entry = 0x40_1208),
    ];
    for (fault, change) in table {
        let mut elf = Elf::fixed();
        change(&mut elf);
        refuse(&elf, fault);
    }
}

#[test]
fn a_table_beyond_the_end_is_truncated() {
    let bytes = Elf { headers_offset: 0x218, ..Elf::fixed() }.bytes();
    let error = Image::from_bytes(&bytes[..bytes.len() - 1]).unwrap_err();
    assert_eq!(error.fault(), Fault::Truncated);
    let mut bytes = Elf::fixed().bytes();
    bytes[32..40].copy_from_slice(&u64::MAX.to_le_bytes());
    assert_eq!(Image::from_bytes(bytes).unwrap_err().fault(), Fault::Truncated);
}

#[test]
fn every_shorter_file_is_refused() {
    let bytes = Elf::fixed().bytes();
    for length in 0..bytes.len() {
        let want = match length {
            0..4 => Fault::NotElf,
            4..232 => Fault::Truncated, // The header and three program headers.
            _ => Fault::BadSegment,
        };
        assert_eq!(Image::from_bytes(&bytes[..length]).unwrap_err().fault(), want, "{length} bytes");
    }
}

#[test]
fn the_entry_of_a_position_independent_image_is_not_0() {
    refuse(&Elf { entry: 0, ..Elf::position_independent() }, Fault::EntryOutside);
}

#[test]
fn each_bad_segment_is_refused() {
    let code = Header::load(RX, 0, 0x40_0000, 0x300);
    let other = Header::load(R, 0, 0x50_0000, 0x10);
    let table = [
        ("more in the file than in memory", Header { memory_bytes: 0xf, ..other }),
        ("more in the file than in no memory", Header { memory_bytes: 0, ..other }),
        ("beyond the file", Header { offset: 0x6000, ..other }),
        ("one byte beyond the file", Header::load(R, 0x5ff8, 0x50_0ff8, 9)),
        ("offset wraps", Header { offset: !0xfff, file_bytes: 0x2000, memory_bytes: 0x2000, ..other }),
        ("address wraps", Header::zeros(R, !0xfff, 0x1001)),
        ("last page wraps", Header::zeros(R, u64::MAX - 8, 8)),
        ("absurd size", Header::zeros(R, 0x50_0000, u64::MAX)),
        ("more than 16 GiB", Header::zeros(R, 0x50_0000, (16 << 30) + 1)),
        ("more than 16 GiB together", Header::zeros(R, 0x50_0000, (16 << 30) - 0x2ff)),
        ("alignment 3", Header { alignment: 3, ..other }),
        ("alignment odd and absurd", Header { alignment: u64::MAX, ..other }),
        ("incongruent", Header { offset: 1, ..other }),
        ("null page", Header::zeros(R, 0, 8)),
        ("below the lowest", Header::zeros(R, map::LOWEST - 1, 8)),
        ("at the highest", Header::zeros(R, map::HIGHEST, 8)),
        ("over the highest", Header::zeros(R, map::HIGHEST - 8, 9)),
        ("not canonical", Header::zeros(R, 0xffff_8000_0000_0000, 8)),
        ("into the window", Header::zeros(R, map::WINDOW_START - 8, 9)),
        ("in the window", Header::zeros(R, map::BOOT_PAGE, 8)),
        ("around the window", Header::zeros(R, map::WINDOW_START - 8, (1 << 30) + 16)),
        ("at the window's end", Header::zeros(R, map::WINDOW_END - 8, 8)),
    ];
    for (name, segment) in table {
        let error = Image::from_bytes(with_segments([code, segment]).bytes()).expect_err(name);
        assert_eq!(error.fault(), Fault::BadSegment, "{name}: {error}");
    }
}

#[test]
fn a_position_independent_image_stays_below_512_mib() {
    let code = Header::load(RX, 0, 0x1000, 0x300);
    let large = |bytes| position_independent([code, Header::zeros(RW, 0x2000, bytes)]);
    touch(&accept(&large((512 << 20) - 0x2000)));
    refuse(&large((512 << 20) - 0x1fff), Fault::BadSegment);
    refuse(&position_independent([code, Header::zeros(RW, 0x4000_0000, 8)]), Fault::BadSegment);
}

#[test]
fn writable_code_is_refused() {
    for flags in [3, 7] {
        refuse(&with_segments([Header::load(flags, 0, 0x40_0000, 0x300)]), Fault::WriteAndExecute);
    }
}

#[test]
fn segments_share_no_byte() {
    let code = Header::load(RX, 0, 0x40_0000, 0x1800);
    for address in [0x40_0000, 0x40_0800, 0x40_1700] {
        let inner = Header::load(R, address & 0xfff, address, 0x10);
        refuse(&with_segments([code, inner]), Fault::OverlappingSegments);
    }
    refuse(&with_segments([code, code]), Fault::OverlappingSegments);
    refuse(&with_segments([code, Header::load(R, 0x17ff, 0x40_17ff, 0x10)]), Fault::OverlappingSegments);
}

#[test]
fn segments_share_a_page_only_if_it_stays_write_xor_execute() {
    let first = |flags| Header::load(flags, 0, 0x40_0000, 0x1800);
    let second = |flags| Header::load(flags, 0x1800, 0x40_1800, 8);
    let third = |flags| Header::load(flags, 0x1808, 0x40_1808, 0x1000);
    let entry = Header::load(RX, 0, 0x60_0000, 8);
    for (rights, fits) in [
        ([RX, RX, RX], true),
        ([RX, R, R], true),
        ([R, RX, R], true),
        ([RW, R, RW], true),
        ([RW, 0, R], true),
        ([RX, RW, R], false),
        ([RW, RX, R], false),
        ([R, RX, RW], false),
        // The first and the third meet in the only page of the second.
        ([RX, R, RW], false),
        ([RW, 0, RX], false),
    ] {
        let elf = with_segments([entry, first(rights[0]), second(rights[1]), third(rights[2])]);
        match fits {
            true => touch(&accept(&elf)),
            false => refuse(&elf, Fault::OverlappingSegments),
        }
    }
}

#[test]
fn segments_that_only_touch_do_not_share() {
    let code = Header::load(RX, 0, 0x40_0000, 0x1000);
    let data = Header::load(RW, 0x1000, 0x40_1000, 0x1000);
    touch(&accept(&with_segments([code, data])));
}

#[test]
fn more_segments_than_any_linker_makes_are_refused() {
    let segments = |count| (0..count).map(|n| Header::load(RX, 0, 0x40_0000 + n * 0x1000, 8)).collect::<Vec<_>>();
    touch(&accept(&with_segments(segments(256))));
    refuse(&with_segments(segments(257)), Fault::TooManySegments);
}

#[test]
fn a_program_that_needs_a_loader_is_refused_by_the_name_of_it() {
    let mut elf = Elf::fixed();
    elf.parts.push((0x300, b"/lib/ld\n.so\0".to_vec()));
    elf.headers.push(Header::about(PT_INTERP, 0x300, 12));
    refuse(&elf, Fault::Dynamic);
    let text = Image::from_bytes(elf.bytes()).unwrap_err().to_string();
    assert!(text.contains("needs the dynamic loader /lib/ld\\n.so: build it static"), "{text}");
    elf.headers.push(Header::about(PT_INTERP, u64::MAX, 12));
    refuse(&elf, Fault::Dynamic);
}

#[test]
fn a_program_that_needs_libraries_is_refused() {
    let dynamic = |tags: &[u64]| {
        let content: Vec<u8> = tags.iter().flat_map(|&tag| [tag.to_le_bytes(), [0; 8]]).flatten().collect();
        let mut elf = Elf::position_independent();
        elf.headers.push(Header::about(PT_DYNAMIC, 0x300, content.len() as u64));
        elf.parts.push((0x300, content));
        elf
    };
    refuse(&dynamic(&[5, 1, 0]), Fault::Dynamic);
    refuse(&dynamic(&[5, 1]), Fault::Dynamic);
    touch(&accept(&dynamic(&[5, 6, 0]))); // As in every static-pie.
    touch(&accept(&dynamic(&[5, 0, 1]))); // After the end.
    touch(&accept(&dynamic(&[])));
    refuse(&dynamic(&[5; 4097]), Fault::BadSegment);
    let mut outside = dynamic(&[0]);
    outside.headers[3].offset = 0x1_0000;
    refuse(&outside, Fault::BadSegment);
}

#[test]
fn program_headers_are_found_where_a_segment_loads_them() {
    let code = Header::load(RX, 0x200, 0x40_1200, 0x100);
    let at = |headers_offset, loaded: Header| {
        accept(&Elf { headers_offset, ..with_segments([code, loaded]) }).program_headers().address
    };
    assert_eq!(at(64, Header::load(R, 0, 0x40_0000, 0x100)), Some(0x40_0040));
    assert_eq!(at(64, Header::load(R, 0x40, 0x50_0040, 112)), Some(0x50_0040));
    assert_eq!(at(64, Header::load(R, 0x40, 0x50_0040, 111)), None);
    // Nothing says that the table is aligned.
    assert_eq!(at(0x1003, Header::load(R, 0x1000, 0x50_0000, 0x100)), Some(0x50_0003));
}

#[test]
fn relro_is_whole_pages_of_a_writable_segment() {
    let code = Header::load(RX, 0, 0x40_0000, 0x300);
    let data = Header::zeros(RW, 0x50_0800, 0x3000);
    let relro = |address, memory_bytes| {
        let relro = Header { kind: PT_GNU_RELRO, ..Header::zeros(R, address, memory_bytes) };
        accept(&with_segments([code, data, relro])).relro()
    };
    assert_eq!(relro(0x50_0800, 0x1800), Some(0x50_0000..0x50_2000));
    assert_eq!(relro(0x50_0800, 0x3800), Some(0x50_0000..0x50_4000));
    assert_eq!(relro(0x50_0800, 0x1900), Some(0x50_0000..0x50_2000));
    assert_eq!(relro(0x50_0800, 0x100), None);
    assert_eq!(relro(0x40_0000, 0x1000), None);
    assert_eq!(relro(0x50_0800, u64::MAX), None);
    assert_eq!(relro(0x50_0800, 0x1_0000), None);
}

#[test]
fn notes_are_those_addressed_to_us() {
    let mut content = note(b"GNU\0", 3, b"build id");
    content.extend(note(b"Coracle\0", 7, b"abc"));
    content.extend(note(b"Coracle", 8, b"no terminator"));
    content.extend(note(b"Coracle\0\0", 9, b"two"));
    content.extend(note(b"Coracle\0", 0xffff_ffff, b""));
    let mut elf = Elf::fixed();
    elf.headers.push(Header::about(PT_NOTE, 0x302, content.len() as u64));
    elf.headers.push(Header { alignment: 0, ..Header::about(PT_NOTE, 0x302, content.len() as u64) });
    elf.parts.push((0x302, content)); // Not aligned, which no rule demands.
    let image = accept(&elf);
    let want: [(u32, &[u8]); 2] = [(7, b"abc"), (0xffff_ffff, b"")];
    assert_eq!(image.notes().collect::<Vec<_>>(), [want, want].concat());
}

#[test]
fn malformed_notes_end_their_segment_only() {
    let mut cut = note(b"Coracle\0", 1, b"whole");
    cut.extend(&note(b"Coracle\0", 2, b"cut off")[..20]);
    let whole = note(b"Coracle\0", 3, b"whole");
    let mut elf = Elf::fixed();
    elf.headers.push(Header::about(PT_NOTE, 0x300, cut.len() as u64));
    elf.headers.push(Header::about(PT_NOTE, u64::MAX, 100));
    elf.headers.push(Header { alignment: 16, ..Header::about(PT_NOTE, 0x400, whole.len() as u64) });
    elf.headers.push(Header::about(PT_NOTE, 0x400, whole.len() as u64));
    elf.parts.extend([(0x300, cut), (0x400, whole)]);
    let image = accept(&elf);
    assert_eq!(image.notes().map(|(kind, _)| kind).collect::<Vec<_>>(), [1, 3]);
}

const FUNCTION: u8 = 0x12; // Global.
const LOCAL_FUNCTION: u8 = 0x02;
const OBJECT: u8 = 0x11;
const LABEL: u8 = 0x10;
const LOCAL_LABEL: u8 = 0x00;

fn with_symbols() -> Elf {
    let symbol = |name, info, address, size| Symbol { name, info, address, size };
    let symbols = vec![
        symbol("second", FUNCTION, 0x40_0110, 0x10),
        symbol("local_alias", LOCAL_FUNCTION, 0x40_0100, 8),
        symbol("_ZN5guest5first17h0123456789abcdefE", FUNCTION, 0x40_0100, 8),
        symbol("short_alias", FUNCTION, 0x40_0100, 4),
        symbol("sizeless", FUNCTION, 0x40_0180, 0),
        symbol("_start", LABEL, 0x40_01f0, 0),
        symbol("loop", LOCAL_LABEL, 0x40_01f8, 0),
        symbol("object", OBJECT, 0x40_0104, 4),
        symbol("data", FUNCTION, 0x40_1210, 4),
        symbol("nowhere", FUNCTION, 0x90_0000, 4),
        symbol("", FUNCTION, 0x40_0200, 8),
    ];
    Elf { symbols, ..Elf::fixed() }
}

#[test]
fn an_address_has_the_name_of_the_function_around_it() {
    let image = accept(&with_symbols());
    for (address, want) in [
        (0x40_00ff, None),
        (0x40_0100, Some(("guest::first", 0))),
        (0x40_0107, Some(("guest::first", 7))),
        (0x40_0108, None),
        (0x40_0110, Some(("second", 0))),
        (0x40_011f, Some(("second", 0xf))),
        (0x40_0120, None),
        (0x40_0180, Some(("sizeless", 0))),
        (0x40_01ef, Some(("sizeless", 0x6f))),
        (0x40_01ff, Some(("_start", 0xf))),
        (0x40_0200, None),
        (0x40_0208, None),
        (0x40_1210, None),
        (0x90_0000, None),
        (0, None),
        (u64::MAX, None),
    ] {
        let symbol = image.symbol(address);
        let found = symbol.as_ref().map(|symbol| (symbol.name.as_str(), symbol.offset));
        assert_eq!(found, want, "{address:#x}");
    }
}

#[test]
fn a_stripped_image_has_no_names() {
    assert_eq!(accept(&Elf::fixed()).symbol(0x40_0200), None);
}

#[test]
fn a_malformed_symbol_table_is_none() {
    let bytes = with_symbols().bytes();
    let sections = u64::from_le_bytes(bytes[40..48].try_into().unwrap()) as usize;
    // In the symbol table's header: its offset, size and link, and what the ELF header says of all of them.
    for (at, width) in [(sections + 88, 8), (sections + 96, 8), (sections + 104, 4), (40, 8), (58, 2), (60, 2)] {
        let mut bytes = bytes.clone();
        bytes[at..at + width].fill(0xff);
        assert_eq!(Image::from_bytes(bytes).unwrap().symbol(0x40_0100), None, "{at}");
    }
}

#[test]
fn clones_share_the_bytes() {
    let image = accept(&Elf::fixed());
    assert!(std::ptr::eq(image.bytes(), image.clone().bytes()));
    fn is_shareable<T: Send + Sync + Clone + 'static>(_: &T) {}
    is_shareable(&image);
}

#[test]
fn debug_output_is_short() {
    let mut elf = Elf::fixed();
    elf.parts.push((0x8000, vec![1; 0x8000]));
    assert!(format!("{:?}", accept(&elf)).len() < 1000);
}

#[test]
fn an_image_from_a_path_has_its_file_name_and_its_errors_have_the_path() {
    let directory = std::env::temp_dir().join(format!("coracle-image-test-{}", std::process::id()));
    fs::create_dir_all(&directory).unwrap();
    let good = directory.join("guest.elf");
    fs::write(&good, Elf::fixed().bytes()).unwrap();
    let bad = directory.join("script");
    fs::write(&bad, "#!/bin/sh\n").unwrap();
    let large = directory.join("large");
    fs::File::create(&large).unwrap().set_len(Image::MAX_FILE_BYTES + 1).unwrap(); // Sparse.

    let image = Image::from_path(&good).unwrap();
    assert_eq!(image.name(), Some("guest.elf"));
    assert_eq!(image.bytes(), Elf::fixed().bytes());
    let missing = directory.join("missing");
    for (path, fault) in [
        (&bad, Fault::NotElf),
        (&large, Fault::TooLarge),
        (&directory, Fault::Unreadable),
        (&missing, Fault::Unreadable),
        (&"/dev/zero".into(), Fault::Unreadable),
    ] {
        let error = Image::from_path(path).unwrap_err();
        assert_eq!(error.fault(), fault, "{error}");
        assert!(error.to_string().starts_with(&format!("guest image {} ", path.display())), "{error}");
    }
    assert!(std::error::Error::source(&Image::from_path(&missing).unwrap_err()).is_some());
    fs::remove_dir_all(&directory).unwrap();
}

/// A valid image with one of everything.
fn rich(file_type: u16) -> Elf {
    let mut elf = if file_type == 2 { with_symbols() } else { Elf::position_independent() };
    elf.symbols.truncate(4); // Seeds for fuzzing are better short.
    let data = elf.headers[1];
    elf.headers.push(Header { kind: PT_GNU_RELRO, ..data });
    elf.headers.push(Header::about(PT_NOTE, 0x1a0, 24));
    elf.headers.push(Header::about(PT_DYNAMIC, 0x1c0, 32));
    elf.parts.extend([(0x1a0, note(b"Coracle\0", 1, b"\x01\0\0\0")), (0x1c0, vec![0; 32])]);
    elf
}

/// A small pseudo-random sequence (xorshift), the same on every run.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit as u64) as usize
    }
}

#[test]
fn no_bytes_make_the_parser_panic() {
    let interesting =
        [0, 1, 7, 8, 0x1000, 0x7fff_ffff, 0xffff_ffff, 1 << 40, map::WINDOW_START, u64::MAX - 1, u64::MAX];
    let seeds = [rich(2).bytes(), rich(3).bytes()];
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let mut accepted = 0;
    for round in 0..40_000 {
        let mut bytes = seeds[round % 2].clone();
        for _ in 0..=random.below(4) {
            let at = random.below(bytes.len());
            match random.below(4) {
                0 => bytes[at] ^= 1 << random.below(8),
                1 => bytes[at] = random.below(256) as u8,
                2 if bytes.len() > 8 => {
                    let at = (at & !3).min(bytes.len() - 8);
                    let word = interesting[random.below(interesting.len())];
                    bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
                }
                _ if random.below(8) == 0 => bytes.truncate(at.max(1)),
                _ => {}
            }
        }
        if let Ok(image) = Image::from_bytes(bytes) {
            accepted += 1;
            touch(&image);
        }
    }
    // Otherwise the accessors were not tested.
    assert!((4_000..36_000).contains(&accepted), "{accepted} of 40000 accepted");
}

#[test]
#[ignore = "writes fuzz/seeds/image"]
fn write_the_fuzz_seeds() {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/seeds/image");
    let zeros = with_segments([Header::zeros(RX, 0x40_0000, 8)]);
    let zeros = Elf { parts: Vec::new(), ..zeros };
    for (name, elf) in [("fixed", rich(2)), ("position-independent", rich(3)), ("zeros-only", zeros)] {
        let image = accept(&elf);
        touch(&image);
        assert_eq!(image.notes().count(), usize::from(name != "zeros-only"));
        assert!(elf.bytes().len() < 1024);
        fs::write(format!("{directory}/{name}.elf"), elf.bytes()).unwrap();
    }
}
