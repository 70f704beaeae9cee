//! From hostile bytes to a [`Layout`] that needs no further checks. A pure function of the bytes.
//!
//! Work and memory are bounded by the length of the file and the limits below, whatever the headers claim. The
//! structures come from `object`, which checks every offset; what they mean together is checked here.

use std::ops::Range;

use coracle_abi::{PAGE_BYTES, map, note};
use coracle_vm::Rights;
use object::LittleEndian;
use object::elf::{self, FileHeader64, ProgramHeader64};
use object::read::elf::{Dyn as _, FileHeader as _, NoteIterator, ProgramHeader as _};

use super::error::{Fault, Refusal};
use super::{Linkage, ProgramHeaders, Segment, extent};

pub(super) const ENDIAN: LittleEndian = LittleEndian;
pub(super) type Header = FileHeader64<LittleEndian>;

/// Linkers write about a dozen; Linux stops at 1170.
const PROGRAM_HEADERS_MAX: u16 = 1024;
/// Linkers make four or five.
const SEGMENTS_MAX: usize = 256;
/// All segments of one image together, so that sums of their sizes never overflow later.
const MEMORY_BYTES_MAX: u64 = 16 << 30;
/// A static program has some 25 entries of 16 bytes.
const DYNAMIC_BYTES_MAX: u64 = 64 << 10;
/// All note segments of one image together.
const NOTE_BYTES_MAX: usize = 4 << 20;

/// What the headers of an accepted image say.
pub(super) struct Layout {
    pub(super) segments: Vec<Segment>,
    pub(super) linkage: Linkage,
    pub(super) entry: u64,
    pub(super) program_headers: ProgramHeaders,
    pub(super) relro: Option<Range<u64>>,
    pub(super) notes: Vec<NoteSegment>,
    /// Start of the extent, rounded down to the strictest alignment that a segment asks for.
    pub(super) aligned_start: u64,
}

/// Where in the file notes are.
pub(super) struct NoteSegment {
    file: Range<usize>,
    alignment: u64,
}

pub(super) fn parse(bytes: &[u8]) -> Result<Layout, Refusal> {
    let header = file_header(bytes)?;
    let linkage = linkage(header)?;
    let table = program_headers(header, bytes)?;
    refuse_dynamic(table, bytes)?;
    let segments = segments(table, bytes)?;
    refuse_overlaps(&segments)?;
    let aligned_start = match linkage {
        Linkage::Fixed => refuse_outside_map(&segments).map(|()| extent(&segments).start)?,
        Linkage::PositionIndependent => position_independent_start(table, &segments)?,
    };
    let entry = header.e_entry(ENDIAN);
    refuse_entry(entry, &segments)?;
    Ok(Layout {
        linkage,
        entry,
        program_headers: ProgramHeaders {
            address: loaded_at(header.e_phoff(ENDIAN), size_of_val(table), &segments),
            count: header.e_phnum(ENDIAN),
            entry_bytes: header.e_phentsize(ENDIAN),
        },
        relro: relro(table, &segments),
        notes: note_segments(table, bytes),
        segments,
        aligned_start,
    })
}

fn file_header(bytes: &[u8]) -> Result<&Header, Refusal> {
    const REBUILD: &str = "build the guest for x86_64-unknown-linux-musl, or with an x86-64 C compiler and -static";
    let refuse = |fault, sentence: String| Err(Refusal::new(fault, sentence));
    if !bytes.starts_with(&elf::ELFMAG) {
        return refuse(Fault::NotElf, format!("is not an ELF program: {REBUILD}"));
    }
    let Some(&[_, _, _, _, class, data, version, ..]) = bytes.first_chunk::<{ size_of::<Header>() }>() else {
        return refuse(Fault::Truncated, "ends inside its ELF header: copy or build it again".into());
    };
    if class != elf::ELFCLASS64.0 {
        return refuse(Fault::WrongClass, format!("is not a 64-bit program: {REBUILD}"));
    }
    if data != elf::ELFDATA2LSB.0 {
        return refuse(Fault::WrongEndian, format!("is not little-endian: {REBUILD}"));
    }
    if version != elf::EV_CURRENT.0 {
        return refuse(Fault::NotElf, format!("is of unknown ELF version {version}: {REBUILD}"));
    }
    let Ok(header) = Header::parse(bytes) else {
        return refuse(Fault::NotElf, format!("has an ELF header that cannot be read: {REBUILD}"));
    };
    let machine = header.e_machine(ENDIAN);
    if machine != elf::EM_X86_64 {
        return refuse(Fault::WrongArchitecture, format!("is for ELF machine {}, not x86-64: {REBUILD}", machine.0));
    }
    Ok(header)
}

fn linkage(header: &Header) -> Result<Linkage, Refusal> {
    let what = match header.e_type(ENDIAN) {
        elf::ET_EXEC => return Ok(Linkage::Fixed),
        elf::ET_DYN => return Ok(Linkage::PositionIndependent),
        elf::ET_REL => "an object file".to_owned(),
        elf::ET_CORE => "a core dump".to_owned(),
        other => format!("an ELF file of type {}", other.0),
    };
    Err(Refusal::new(Fault::WrongType, format!("is {what}: give the program that the linker wrote")))
}

fn program_headers<'a>(header: &Header, bytes: &'a [u8]) -> Result<&'a [ProgramHeader64<LittleEndian>], Refusal> {
    let count = header.e_phnum(ENDIAN);
    let entry_bytes = header.e_phentsize(ENDIAN);
    if count == 0 {
        return Ok(&[]); // And so no segments.
    }
    if count > PROGRAM_HEADERS_MAX || usize::from(entry_bytes) != size_of::<ProgramHeader64<LittleEndian>>() {
        let sentence = format!(
            "claims {count} program headers of {entry_bytes} bytes, which no linker writes (at most \
             {PROGRAM_HEADERS_MAX} of 56 are accepted): build it again"
        );
        return Err(Refusal::new(Fault::HeaderCount, sentence));
    }
    header
        .program_headers(ENDIAN, bytes)
        .map_err(|_| Refusal::new(Fault::Truncated, "ends inside its program headers: copy or build it again"))
}

fn refuse_dynamic(table: &[ProgramHeader64<LittleEndian>], bytes: &[u8]) -> Result<(), Refusal> {
    const REBUILD: &str = "build it static, with gcc -static-pie or for the target x86_64-unknown-linux-musl";
    for header in table {
        match header.p_type(ENDIAN) {
            elf::PT_INTERP => {
                // What it names is the file's claim and may be anything: shown short and escaped.
                let path = header.interpreter(ENDIAN, bytes).ok().flatten().unwrap_or(b"(name unreadable)");
                let path = path[..path.len().min(100)].escape_ascii();
                return Err(Refusal::new(Fault::Dynamic, format!("needs the dynamic loader {path}: {REBUILD}")));
            }
            elf::PT_DYNAMIC if needs_libraries(header, bytes)? => {
                return Err(Refusal::new(Fault::Dynamic, format!("needs shared libraries: {REBUILD}")));
            }
            _ => {}
        }
    }
    Ok(())
}

fn needs_libraries(header: &ProgramHeader64<LittleEndian>, bytes: &[u8]) -> Result<bool, Refusal> {
    let size = header.p_filesz(ENDIAN);
    let entries = match header.dynamic(ENDIAN, bytes) {
        Ok(Some(entries)) if size <= DYNAMIC_BYTES_MAX => entries,
        _ => {
            let sentence = format!(
                "has a dynamic section of {size} bytes that is larger than {DYNAMIC_BYTES_MAX} or outside the file: \
                 build it again"
            );
            return Err(Refusal::new(Fault::BadSegment, sentence));
        }
    };
    let tags = entries.iter().map(|entry| entry.d_tag(ENDIAN));
    Ok(tags.take_while(|&tag| tag != elf::DT_NULL).any(|tag| tag == elf::DT_NEEDED))
}

/// The loadable segments, sorted, each checked by itself.
fn segments(table: &[ProgramHeader64<LittleEndian>], bytes: &[u8]) -> Result<Vec<Segment>, Refusal> {
    let mut segments = Vec::new();
    let mut memory_bytes = 0;
    for header in table.iter().filter(|header| header.p_type(ENDIAN) == elf::PT_LOAD) {
        let Some(segment) = segment(header, bytes)? else { continue };
        if segments.len() == SEGMENTS_MAX {
            let sentence = format!("has more than {SEGMENTS_MAX} loadable segments: merge some in its linker script");
            return Err(Refusal::new(Fault::TooManySegments, sentence));
        }
        memory_bytes += segment.memory_bytes; // At most MEMORY_BYTES_MAX, twice.
        if memory_bytes > MEMORY_BYTES_MAX {
            return Err(bad_segment(header, "brings the image above 16 GiB of memory", "allocate at run time instead"));
        }
        segments.push(segment);
    }
    if segments.is_empty() {
        let sentence = "has nothing to load: give the program that the linker wrote";
        return Err(Refusal::new(Fault::NoSegments, sentence));
    }
    segments.sort_unstable_by_key(|segment| segment.address);
    Ok(segments)
}

/// One segment, or `None` if it is empty.
fn segment(header: &ProgramHeader64<LittleEndian>, bytes: &[u8]) -> Result<Option<Segment>, Refusal> {
    const REBUILD: &str = "the file is damaged, or not a linker's work: build it again";
    let bad = |what, advice| Err(bad_segment(header, what, advice));
    let address = header.p_vaddr(ENDIAN);
    let memory_bytes = header.p_memsz(ENDIAN);
    let offset = header.p_offset(ENDIAN);
    let file_bytes = header.p_filesz(ENDIAN);
    let alignment = header.p_align(ENDIAN);
    if file_bytes > memory_bytes {
        return bad("has more bytes in the file than in memory", REBUILD);
    }
    if memory_bytes == 0 {
        return Ok(None);
    }
    if memory_bytes > MEMORY_BYTES_MAX {
        return bad("is larger than 16 GiB", "allocate at run time instead");
    }
    if address.checked_add(memory_bytes).and_then(|end| end.checked_next_multiple_of(PAGE_BYTES)).is_none() {
        return bad("runs past the end of the address space", REBUILD);
    }
    if alignment != 0 && !alignment.is_power_of_two() {
        return bad("has an alignment that is not a power of two", REBUILD);
    }
    let file = match file_bytes {
        0 => 0..0, // Wherever its offset points to: nothing is read there.
        _ => {
            let Some(file) = file_range(offset, file_bytes, bytes) else {
                return bad("lies partly outside the file", "the file was cut short: copy or build it again");
            };
            if offset % PAGE_BYTES != address % PAGE_BYTES {
                return bad("has a file offset and an address that differ inside the page", "link without -n and -N");
            }
            file
        }
    };
    let flags = header.p_flags(ENDIAN);
    let (write, execute) = (flags.contains(elf::PF_W), flags.contains(elf::PF_X));
    if write && execute {
        let sentence = format!(
            "has a segment at {address:#x} that is both writable and executable: link without -N and without \
             code in writable sections"
        );
        return Err(Refusal::new(Fault::WriteAndExecute, sentence));
    }
    let rights = Rights { read: write || execute || flags.contains(elf::PF_R), write, execute };
    Ok(Some(Segment { address, memory_bytes, file, rights }))
}

fn bad_segment(header: &ProgramHeader64<LittleEndian>, what: &str, advice: &str) -> Refusal {
    let address = header.p_vaddr(ENDIAN);
    Refusal::new(Fault::BadSegment, format!("has a segment at {address:#x} that {what}: {advice}"))
}

/// A claimed part of the file, if it lies inside.
pub(super) fn file_range(offset: u64, length: u64, bytes: &[u8]) -> Option<Range<usize>> {
    let end = offset.checked_add(length)?;
    let range = usize::try_from(offset).ok()?..usize::try_from(end).ok()?;
    (range.end <= bytes.len()).then_some(range)
}

/// Segments must not share a byte. They may share a page, which old linkers let them, as long as the page's rights,
/// those of all its segments together, do not make it writable and executable.
fn refuse_overlaps(segments: &[Segment]) -> Result<(), Refusal> {
    let mut end = 0;
    let mut last_page = (0..0, Rights::NONE);
    for segment in segments {
        let address = segment.address;
        if address < end {
            let sentence = format!("has two segments that overlap at {address:#x}: check its linker script");
            return Err(Refusal::new(Fault::OverlappingSegments, sentence));
        }
        end = segment.range().end;
        let pages = segment.page_range();
        let shared = if last_page.0.contains(&address) { union(last_page.1, segment.rights) } else { segment.rights };
        if shared.write && shared.execute {
            let sentence = format!(
                "has writable and executable segments that share the page of {address:#x}: link with \
                 -z separate-code, or align the segments in its linker script to 4096"
            );
            return Err(Refusal::new(Fault::OverlappingSegments, sentence));
        }
        // A third segment may start in this one's only page, and so meet the first.
        let single = pages.end - pages.start == PAGE_BYTES;
        last_page = (pages.end - PAGE_BYTES..pages.end, if single { shared } else { segment.rights });
    }
    Ok(())
}

fn union(a: Rights, b: Rights) -> Rights {
    Rights { read: a.read || b.read, write: a.write || b.write, execute: a.execute || b.execute }
}

/// For images that choose their own addresses.
fn refuse_outside_map(segments: &[Segment]) -> Result<(), Refusal> {
    for segment in segments {
        let pages = segment.page_range();
        let what = if pages.start < map::LOWEST {
            format!("below {:#x}, where nothing is ever mapped", map::LOWEST)
        } else if pages.end > map::HIGHEST {
            format!("above {:#x}, where user space ends", map::HIGHEST)
        } else if pages.start < map::WINDOW_END && pages.end > map::WINDOW_START {
            format!("inside {:#x}..{:#x}, which the host uses", map::WINDOW_START, map::WINDOW_END)
        } else {
            continue;
        };
        let sentence = format!(
            "has a segment at {:#x}..{:#x}, {what}: link it at 0x400000, or with -static-pie",
            pages.start, pages.end
        );
        return Err(Refusal::new(Fault::BadSegment, sentence));
    }
    Ok(())
}

/// For images that the host places. Returns the link address that goes to [`map::IMAGE_BASE`]: the start of the
/// extent, rounded down as far as the strictest alignment asks, because moving an image by a multiple of that
/// alignment is all that its linker reckoned with.
fn position_independent_start(table: &[ProgramHeader64<LittleEndian>], segments: &[Segment]) -> Result<u64, Refusal> {
    let alignments = table
        .iter()
        .filter(|header| header.p_type(ENDIAN) == elf::PT_LOAD && header.p_memsz(ENDIAN) != 0)
        .map(|header| header.p_align(ENDIAN));
    let alignment = alignments.fold(PAGE_BYTES, u64::max); // A power of two, as all of them are.
    if !map::IMAGE_BASE.is_multiple_of(alignment) {
        let sentence = format!("has a segment aligned to {alignment:#x}, more than any load address: lower it");
        return Err(Refusal::new(Fault::BadSegment, sentence));
    }
    let Range { start, end } = extent(segments);
    let start = start & !(alignment - 1);
    let limit = map::IMAGE_END - map::IMAGE_BASE;
    if end - start >= limit {
        let sentence = format!(
            "spans {} MiB and must stay below {} MiB when position-independent: link it with -static -no-pie, or \
             allocate at run time instead",
            (end - start) >> 20,
            limit >> 20
        );
        return Err(Refusal::new(Fault::BadSegment, sentence));
    }
    Ok(start)
}

fn refuse_entry(entry: u64, segments: &[Segment]) -> Result<(), Refusal> {
    // 0 is ELF's word for "none", even where a shared library has code at 0.
    if entry == 0 {
        let sentence = "has no entry point: it is a library, or was linked without start code; give a whole program";
        return Err(Refusal::new(Fault::EntryOutside, sentence));
    }
    match segment_at(entry, segments) {
        Some(segment) if segment.rights.execute => Ok(()),
        _ => {
            let sentence = format!(
                "starts at {entry:#x}, which is not in an executable segment: check the entry symbol given to the linker"
            );
            Err(Refusal::new(Fault::EntryOutside, sentence))
        }
    }
}

/// The segment that `address` lies in.
pub(super) fn segment_at(address: u64, segments: &[Segment]) -> Option<&Segment> {
    let after = segments.partition_point(|segment| segment.address <= address);
    segments[..after].last().filter(|segment| segment.range().contains(&address))
}

/// Where a part of the file ends up, by the first segment that loads the whole of it. Not by `PT_PHDR`, which is
/// only a claim about the same.
fn loaded_at(offset: u64, length: usize, segments: &[Segment]) -> Option<u64> {
    let start = usize::try_from(offset).ok()?;
    let end = start.checked_add(length)?;
    let segment = segments.iter().find(|segment| segment.file.start <= start && end <= segment.file.end)?;
    Some(segment.address + (start - segment.file.start) as u64)
}

fn relro(table: &[ProgramHeader64<LittleEndian>], segments: &[Segment]) -> Option<Range<u64>> {
    let header = table.iter().find(|header| header.p_type(ENDIAN) == elf::PT_GNU_RELRO)?;
    let address = header.p_vaddr(ENDIAN);
    // Both rounded down, as the guest's libraries do: what shares the last page must stay writable.
    let start = super::page_start(address);
    let end = super::page_start(address.checked_add(header.p_memsz(ENDIAN))?);
    let inside = |segment: &Segment| {
        let pages = segment.page_range();
        segment.rights.write && pages.start <= start && end <= pages.end
    };
    (start < end && segments.iter().any(inside)).then_some(start..end)
}

fn note_segments(table: &[ProgramHeader64<LittleEndian>], bytes: &[u8]) -> Vec<NoteSegment> {
    let mut left = NOTE_BYTES_MAX;
    let mut notes = Vec::new();
    for header in table.iter().filter(|header| header.p_type(ENDIAN) == elf::PT_NOTE) {
        let (offset, length) = header.file_range(ENDIAN);
        let Some(Range { start, end }) = file_range(offset, length, bytes) else { continue };
        let end = end.min(start + left);
        left -= end - start;
        notes.push(NoteSegment { file: start..end, alignment: header.p_align(ENDIAN) });
    }
    notes
}

pub(super) fn notes<'a>(bytes: &'a [u8], segments: &'a [NoteSegment]) -> impl Iterator<Item = (u32, &'a [u8])> {
    segments
        .iter()
        .filter_map(|segment| NoteIterator::<Header>::new(ENDIAN, segment.alignment, &bytes[segment.file.clone()]).ok())
        .flat_map(|notes| notes.map_while(Result::ok))
        .filter(|entry| entry.name_bytes() == note::OWNER)
        .map(|entry| (entry.n_type(ENDIAN).0, entry.desc()))
}
