//! A disk that stops in the middle of things. It keeps apart what has been synced and what has not; after a power cut
//! any subset of the unsynced sectors, and any first part of the unsynced directory changes, may have survived.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};

use super::disk::{Disk, DiskFile};

const SECTOR: usize = 512;

#[derive(Clone, Default)]
pub(super) struct CrashDisk(Arc<Mutex<World>>);

#[derive(Default)]
struct World {
    inodes: Vec<Inode>,
    names: BTreeMap<u64, usize>,
    durable_names: BTreeMap<u64, usize>,
    unsynced_names: Vec<Change>,
    /// Operations until the disk fails; `None`: it does not.
    left: Option<u64>,
    /// All operations that change or sync something.
    operations: u64,
}

#[derive(Default)]
struct Inode {
    content: Vec<u8>,
    durable: Vec<u8>,
    unsynced: Vec<Write>,
}

#[derive(Clone)]
enum Write {
    Bytes(usize, Vec<u8>),
    Truncate(usize),
}

#[derive(Clone, Copy)]
enum Change {
    Create(u64, usize),
    Rename(u64, u64),
    Remove(u64),
}

fn apply_change(names: &mut BTreeMap<u64, usize>, change: Change) {
    match change {
        Change::Create(name, inode) => {
            names.insert(name, inode);
        }
        Change::Rename(from, to) => {
            let inode = names.remove(&from).expect("it was there when it was renamed");
            names.insert(to, inode);
        }
        Change::Remove(name) => {
            names.remove(&name);
        }
    }
}

fn apply_write(content: &mut Vec<u8>, write: &Write) {
    match write {
        Write::Bytes(offset, bytes) => {
            content.resize(content.len().max(offset + bytes.len()), 0);
            content[*offset..offset + bytes.len()].copy_from_slice(bytes);
        }
        Write::Truncate(length) => content.resize(*length, 0),
    }
}

impl World {
    fn step(&mut self) -> io::Result<()> {
        self.operations += 1;
        match &mut self.left {
            Some(0) => Err(io::Error::other("injected disk failure")),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn change(&mut self, change: Change) -> io::Result<()> {
        self.step()?;
        apply_change(&mut self.names, change);
        self.unsynced_names.push(change);
        Ok(())
    }
}

impl CrashDisk {
    fn world(&self) -> MutexGuard<'_, World> {
        self.0.lock().expect("no test panics with it")
    }

    /// From now on `left` operations succeed and all later ones fail.
    pub(super) fn fail_after(&self, left: u64) {
        self.world().left = Some(left);
    }

    pub(super) fn operations(&self) -> u64 {
        self.world().operations
    }

    pub(super) fn files(&self) -> usize {
        self.world().names.len()
    }

    /// Inverts a bit of a segment, on the medium itself.
    pub(super) fn rot(&self, number: u64, offset: usize) {
        let mut world = self.world();
        let inode = world.names[&number];
        world.inodes[inode].content[offset] ^= 1;
        world.inodes[inode].durable[offset] ^= 1;
    }

    /// Loses the power and gets it back.
    pub(super) fn cut_power(&self, rng: &mut fastrand::Rng) {
        let mut world = self.world();
        let kept = rng.usize(..=world.unsynced_names.len());
        let changes: Vec<Change> = world.unsynced_names.drain(..).take(kept).collect();
        for change in changes {
            apply_change(&mut world.durable_names, change);
        }
        world.names = world.durable_names.clone();
        for inode in &mut world.inodes {
            for write in std::mem::take(&mut inode.unsynced) {
                match write {
                    Write::Truncate(_) if rng.bool() => apply_write(&mut inode.durable, &write),
                    Write::Truncate(_) => {}
                    Write::Bytes(offset, bytes) => {
                        // All, nothing, or each sector for itself.
                        let mode = rng.u8(..3);
                        let mut at = 0;
                        while at < bytes.len() {
                            let next = (SECTOR - (offset + at) % SECTOR + at).min(bytes.len());
                            if mode == 0 || mode == 1 && rng.bool() {
                                let sector = Write::Bytes(offset + at, bytes[at..next].to_vec());
                                apply_write(&mut inode.durable, &sector);
                            }
                            at = next;
                        }
                    }
                }
            }
            inode.content = inode.durable.clone();
        }
        world.left = None;
    }
}

pub(super) struct CrashFile {
    disk: CrashDisk,
    inode: usize,
}

impl Disk for CrashDisk {
    type File = CrashFile;

    fn list(&self) -> io::Result<Vec<u64>> {
        Ok(self.world().names.keys().copied().collect())
    }

    fn create(&self, number: u64) -> io::Result<CrashFile> {
        let mut world = self.world();
        assert!(!world.names.contains_key(&number), "segment {number} is created twice");
        let inode = world.inodes.len();
        world.inodes.push(Inode::default());
        world.change(Change::Create(number, inode))?;
        Ok(CrashFile { disk: self.clone(), inode })
    }

    fn open(&self, number: u64) -> io::Result<CrashFile> {
        let inode = *self.world().names.get(&number).ok_or(io::ErrorKind::NotFound)?;
        Ok(CrashFile { disk: self.clone(), inode })
    }

    fn rename(&self, from: u64, to: u64) -> io::Result<()> {
        self.world().change(Change::Rename(from, to))
    }

    fn remove(&self, number: u64) -> io::Result<()> {
        self.world().change(Change::Remove(number))
    }

    fn sync(&self) -> io::Result<()> {
        let mut world = self.world();
        world.step()?;
        world.durable_names = world.names.clone();
        world.unsynced_names.clear();
        Ok(())
    }

    fn path(&self, number: u64) -> PathBuf {
        PathBuf::from(format!("crash-disk/{number}"))
    }
}

impl CrashFile {
    fn write(&self, write: Write) -> io::Result<()> {
        let mut world = self.disk.world();
        let stepped = world.step();
        let inode = &mut world.inodes[self.inode];
        // What fails may still have reached the medium.
        apply_write(&mut inode.content, &write);
        inode.unsynced.push(write);
        stepped
    }
}

impl DiskFile for CrashFile {
    fn read_all(&self) -> io::Result<Vec<u8>> {
        Ok(self.disk.world().inodes[self.inode].content.clone())
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let offset = offset as usize;
        buffer.copy_from_slice(&self.disk.world().inodes[self.inode].content[offset..offset + buffer.len()]);
        Ok(())
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.write(Write::Bytes(offset as usize, bytes.to_vec()))
    }

    fn truncate(&self, length: u64) -> io::Result<()> {
        self.write(Write::Truncate(length as usize))
    }

    fn sync(&self) -> io::Result<()> {
        let mut world = self.disk.world();
        world.step()?;
        let inode = &mut world.inodes[self.inode];
        inode.durable = inode.content.clone();
        inode.unsynced.clear();
        Ok(())
    }
}
