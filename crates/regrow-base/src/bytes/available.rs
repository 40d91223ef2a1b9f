//! The available memory. A load uses only a part of it, so that other programs have enough.

use std::fs;

/// Whether a load may allocate `len_bytes`: at most half of the available memory. The system can
/// take back pages of a map, but not allocated memory.
#[inline]
pub fn is_available(len_bytes: u64) -> bool {
    fits(len_bytes, available_bytes())
}

fn fits(len_bytes: u64, available_bytes: Option<u64>) -> bool {
    available_bytes.is_none_or(|available| len_bytes <= available / 2)
}

/// Memory that this process can allocate without swapping, according to the system and the
/// process's cgroup; `None` if neither tells.
pub fn available_bytes() -> Option<u64> {
    let system = fs::read_to_string("/proc/meminfo").ok().and_then(|text| of_system(&text));
    let group = fs::read_to_string("/proc/self/cgroup").ok().and_then(|text| of_group(&text));
    [system, group].into_iter().flatten().min()
}

/// Parses the line `MemAvailable:   12345 kB`.
fn of_system(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// The memory left under the limits of the cgroup and the cgroups above it (cgroup v2:
/// `0::/user.slice/job`).
fn of_group(cgroup: &str) -> Option<u64> {
    let path = cgroup.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let number = |folder: &str, file: &str| {
        fs::read_to_string(format!("/sys/fs/cgroup/{folder}/{file}")).ok()?.trim().parse::<u64>().ok()
    };
    let left = |folder: &str| {
        // Most groups have no limit and hold the word `max`, which is not a number.
        let limit = number(folder, "memory.max")?;
        Some(limit.saturating_sub(number(folder, "memory.current")?))
    };
    let above = path.match_indices('/').filter_map(|(at, _)| path.get(..at));
    above.chain([path, ""]).filter_map(left).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_takes_half_at_most() {
        assert!(fits(50, Some(100)) && !fits(51, Some(100)) && !fits(1, Some(1)));
        assert!(fits(u64::MAX, None), "an unknown amount allows all");
        assert!(is_available(1) && !is_available(u64::MAX));
    }

    #[test]
    fn reads_what_the_system_says() {
        let text = "MemTotal:       24683716 kB\nMemFree:          100 kB\nMemAvailable:   22299148 kB\n";
        assert_eq!(of_system(text), Some(22_299_148 * 1024));
        for odd in ["", "MemAvailable: kB", "MemAvailable: 5", "MemAvailable: 99999999999999999999 kB"] {
            assert_eq!(of_system(odd), None, "{odd}");
        }
    }

    #[test]
    fn this_machine_has_some() {
        assert!(available_bytes().is_some_and(|bytes| bytes > 0));
    }

    #[test]
    fn a_group_that_is_not_there_says_nothing() {
        assert_eq!(of_group("1:memory:/old"), None);
    }
}
