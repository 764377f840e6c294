//! The control groups of this process (Linux), which limit containers: their folders, and the CPU quota.
//!
//! Input: the text of `/proc/self/cgroup`, and the groups' files. What must hold: the limits of all groups
//! around a process apply to it.

use std::{
    fs,
    num::NonZeroUsize,
    path::{Path, PathBuf},
    thread,
};

/// A control group in version 1 or 2.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ControlGroup {
    pub(crate) folder: PathBuf,
    pub(crate) is_version_1: bool,
}

impl ControlGroup {
    /// The groups of this process for a controller, such as `memory`, and the groups around them.
    pub(crate) fn read_groups(controller: &str) -> Vec<Self> {
        Self::parse_groups(&fs::read_to_string("/proc/self/cgroup").unwrap_or_default(), controller)
    }

    /// The same, for the text of a `/proc/self/cgroup`.
    fn parse_groups(groups: &str, controller: &str) -> Vec<Self> {
        let mut found = Vec::new();
        for line in groups.lines() {
            let mut fields = line.splitn(3, ':');
            let (Some(_), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next())
            else {
                continue;
            };
            let is_version_1 = !controllers.is_empty();
            if is_version_1 && !controllers.split(',').any(|name| name == controller) {
                continue;
            }
            let mut root = PathBuf::from("/sys/fs/cgroup");
            if is_version_1 {
                root.push(controller);
            }
            let group = root.join(path.trim_start_matches('/'));
            let ancestors = group.ancestors().take_while(|folder| folder.starts_with(&root));
            found.extend(ancestors.map(|folder| Self { folder: folder.to_owned(), is_version_1 }));
        }
        found
    }

    /// The group's CPU quota in cores, if it has one.
    fn cpu_quota(&self) -> Option<f64> {
        let (quota, period): (f64, f64) = if self.is_version_1 {
            (
                read_number(&self.folder.join("cpu.cfs_quota_us"))?,
                read_number(&self.folder.join("cpu.cfs_period_us"))?,
            )
        } else {
            let limit = fs::read_to_string(self.folder.join("cpu.max")).ok()?;
            let (quota, period) = limit.trim().split_once(' ')?;
            (quota.parse().ok()?, period.parse().ok()?)
        };
        // Without a quota, version 1 says -1 and version 2 `max`.
        (quota > 0.0 && period > 0.0).then(|| quota / period)
    }
}

/// The CPU time that this process may use.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Cores {
    /// The number of threads that can use all of it: the quota is rounded up, because with fewer threads a
    /// part of it could not be used.
    pub(crate) threads: usize,
    /// The quota in cores if it is less than the CPUs.
    pub(crate) quota: Option<f64>,
}

impl Cores {
    /// Reads the process's CPUs and the quotas of its control groups.
    pub(crate) fn read_limits() -> Self {
        let quotas = ControlGroup::read_groups("cpu");
        let quota = quotas.iter().filter_map(ControlGroup::cpu_quota).min_by(f64::total_cmp);
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        // The standard library's number is for systems without that file. It rounds a quota down.
        let cpus = allowed_cpus(&status)
            .unwrap_or_else(|| thread::available_parallelism().map_or(1, NonZeroUsize::get));
        Self::with_quota(cpus, quota)
    }

    fn with_quota(cpus: usize, quota: Option<f64>) -> Self {
        match quota {
            Some(quota) if quota < cpus as f64 => {
                Self { threads: (quota.ceil() as usize).max(1), quota: Some(quota) }
            }
            _ => Self { threads: cpus, quota: None },
        }
    }
}

fn read_number(file: &Path) -> Option<f64> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

/// The number of CPUs in a mask such as `ff,ffffffff`, from the text of a `/proc/self/status`.
fn allowed_cpus(status: &str) -> Option<usize> {
    let mask = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed:"))?;
    let bits = mask.chars().filter_map(|digit| digit.to_digit(16)).map(u32::count_ones).sum::<u32>();
    (bits > 0).then_some(bits as usize)
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;

    #[test]
    fn a_group_and_the_groups_around_it_are_found_in_both_versions() {
        let folders = |groups, controller| {
            let found = ControlGroup::parse_groups(groups, controller);
            found.iter().map(|group| group.folder.display().to_string()).collect::<Vec<_>>()
        };
        assert_eq!(
            folders("0::/kubepods/pod1\n", "memory"),
            ["/sys/fs/cgroup/kubepods/pod1", "/sys/fs/cgroup/kubepods", "/sys/fs/cgroup"]
        );
        let old = "3:cpu,cpuacct:/b\n4:memory:/a\nnonsense\n";
        assert_eq!(folders(old, "memory"), ["/sys/fs/cgroup/memory/a", "/sys/fs/cgroup/memory"]);
        assert_eq!(folders(old, "cpu"), ["/sys/fs/cgroup/cpu/b", "/sys/fs/cgroup/cpu"]);
        assert!(folders("3:cpuset:/a\n", "cpu").is_empty());
    }

    #[test]
    fn quotas_of_both_versions_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let quota = |is_version_1, files: &[(&str, &str)]| {
            for (name, text) in files {
                fs::write(folder.path().join(name), text).unwrap();
            }
            ControlGroup { folder: folder.path().to_owned(), is_version_1 }.cpu_quota()
        };
        assert_eq!(quota(false, &[]), None);
        for (text, expected) in
            [("max 100000\n", None), ("150000 100000\n", Some(1.5)), ("5000 10000\n", Some(0.5)), ("x", None)]
        {
            assert_eq!(quota(false, &[("cpu.max", text)]), expected, "{text}");
        }
        for (text, expected) in [("-1\n", None), ("150000\n", Some(1.5)), ("", None)] {
            let files = [("cpu.cfs_quota_us", text), ("cpu.cfs_period_us", "100000\n")];
            assert_eq!(quota(true, &files), expected, "{text}");
        }
    }

    #[test]
    fn threads_follow_the_quota_rounded_up() {
        let table = [
            (2, None, 2, None),
            (2, Some(0.5), 1, Some(0.5)),
            (2, Some(1.0), 1, Some(1.0)),
            (2, Some(1.5), 2, Some(1.5)),
            (2, Some(2.0), 2, None),
            (64, Some(3.2), 4, Some(3.2)),
            (1, Some(0.001), 1, Some(0.001)),
        ];
        for (cpus, limit, threads, quota) in table {
            assert_eq!(Cores::with_quota(cpus, limit), Cores { threads, quota }, "{cpus} {limit:?}");
        }
    }

    #[test]
    fn the_bits_of_a_mask_are_counted() {
        assert_eq!(
            allowed_cpus("Name:\tx\nCpus_allowed:\tff,ffffffff\nCpus_allowed_list:\t0-39\n"),
            Some(40)
        );
        assert_eq!(allowed_cpus("Cpus_allowed:\t3\n"), Some(2));
        assert_eq!(allowed_cpus(""), None);
    }
}
