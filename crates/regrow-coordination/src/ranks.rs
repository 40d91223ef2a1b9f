//! Lists of ranks, for messages.

const RUNS_MAX: usize = 8;

/// `rank 3`, `ranks 0, 2-5, 9`; the ranks are sorted.
pub(super) fn ranks(ranks: &[usize]) -> String {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for &rank in ranks {
        match runs.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(rank) => *last = rank,
            _ => runs.push((rank, rank)),
        }
    }
    let left: usize = runs.iter().skip(RUNS_MAX).map(|(first, last)| last - first + 1).sum();
    let mut words: Vec<String> = runs.iter().take(RUNS_MAX).map(|run| text(*run)).collect();
    if left > 0 {
        words.push(format!("and {left} more"));
    }
    let noun = if ranks.len() == 1 { "rank" } else { "ranks" };
    format!("{noun} {}", words.join(", "))
}

fn text((first, last): (usize, usize)) -> String {
    match last - first {
        0 => first.to_string(),
        1 => format!("{first}, {last}"),
        _ => format!("{first}-{last}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_named_and_many_are_counted() {
        assert_eq!(ranks(&[3]), "rank 3");
        assert_eq!(ranks(&[0, 2, 3, 4, 7, 8]), "ranks 0, 2-4, 7, 8");
        let even: Vec<usize> = (0..40).step_by(2).collect();
        assert_eq!(ranks(&even), "ranks 0, 2, 4, 6, 8, 10, 12, 14, and 12 more");
    }
}
