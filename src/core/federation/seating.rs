//! Which ordinal a wanted member gets where others are already. A spec names zones, and a member keeps its address, which
//! is made of its ordinal, for life: a voter that is wanted in another zone needs another ordinal than the one that it
//! replaces (safety.md 5, replace live).

use crate::id::Slot;

/// The wanted slots, each with the ordinal of a member that is there in its zone, or with one that nobody has. What is
/// there already, as listed or in the own directories, decides; so every agent that knows the list says the same.
pub fn seated(wanted: &[Slot], there: &[Slot]) -> Vec<Slot> {
    let mut seats: Vec<Slot> = wanted.iter().filter(|slot| there.contains(slot)).cloned().collect();
    for slot in wanted.iter().filter(|slot| !there.contains(slot)) {
        let same_zone = |other: &&Slot| other.site == slot.site && other.zone == slot.zone;
        let idle =
            there.iter().filter(same_zone).find(|other| !seats.contains(other) && !wanted.contains(other));
        let seat = idle
            .cloned()
            .unwrap_or_else(|| Slot { ordinal: free(slot, there, &seats, wanted), ..slot.clone() });
        seats.push(seat);
    }
    seats.sort();
    seats
}

/// The ordinal of the spec, or the lowest that nobody has or will have.
fn free(slot: &Slot, there: &[Slot], seats: &[Slot], wanted: &[Slot]) -> u32 {
    let taken = |ordinal: u32| {
        let same = |other: &Slot| other.site == slot.site && other.ordinal == ordinal;
        there.iter().chain(seats).any(same) || wanted.iter().any(|other| other != slot && same(other))
    };
    let lowest = || (0..=u32::MAX).find(|ordinal| !taken(*ordinal)).unwrap_or(slot.ordinal);
    if taken(slot.ordinal) { lowest() } else { slot.ordinal }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slots(words: &[&str]) -> Vec<Slot> {
        let slot = |word: &&str| {
            let (site, rest) = word.split_once('/').unwrap();
            let (zone, ordinal) = rest.rsplit_once('-').unwrap();
            serde_json::from_value(
                serde_json::json!({"site": site, "zone": zone, "ordinal": ordinal.parse::<u32>().unwrap()}),
            )
            .unwrap()
        };
        words.iter().map(slot).collect()
    }

    fn seats(wanted: &[&str], there: &[&str]) -> Vec<String> {
        seated(&slots(wanted), &slots(there)).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn the_spec_decides_where_nobody_is() {
        assert_eq!(seats(&["a/x-0", "a/y-1"], &[]), ["a/x-0", "a/y-1"]);
        assert_eq!(seats(&["a/x-0", "a/y-1"], &["b/x-0", "b/y-1"]), ["a/x-0", "a/y-1"]);
    }

    #[test]
    fn another_zone_gets_another_ordinal_and_keeps_it() {
        let wanted = ["a/x-0", "a/y-1", "a/w-2"];
        let before = ["a/x-0", "a/y-1", "a/z-2"];
        assert_eq!(seats(&wanted, &before), ["a/x-0", "a/y-1", "a/w-3"]);
        assert_eq!(seats(&wanted, &[&before[..], &["a/w-3"]].concat()), ["a/x-0", "a/y-1", "a/w-3"]);
        assert_eq!(seats(&wanted, &["a/x-0", "a/y-1", "a/w-3"]), ["a/x-0", "a/y-1", "a/w-3"]);
        // It is lost and no longer listed: the address that nobody has any more is good again.
        assert_eq!(seats(&wanted, &["a/x-0", "a/y-1"]), ["a/x-0", "a/y-1", "a/w-2"]);
        // And back.
        assert_eq!(seats(&before, &["a/x-0", "a/y-1", "a/w-3"]), ["a/x-0", "a/y-1", "a/z-2"]);
    }

    #[test]
    fn zones_in_another_order_move_nobody() {
        assert_eq!(
            seats(&["a/x-0", "a/z-1", "a/y-2"], &["a/x-0", "a/y-1", "a/z-2"]),
            ["a/x-0", "a/y-1", "a/z-2"]
        );
    }

    #[test]
    fn two_of_one_zone_are_told_apart() {
        let wanted = ["a/x-0", "a/x-1"];
        assert_eq!(seats(&wanted, &["a/x-1"]), ["a/x-0", "a/x-1"]);
        assert_eq!(seats(&["a/x-0"], &["a/x-0", "a/x-1"]), ["a/x-0"]);
        assert_eq!(seats(&["a/x-0"], &["a/x-1"]), ["a/x-1"], "the one that is there is as good");
        assert_eq!(seats(&["a/x-0", "a/y-1", "a/z-2"], &["a/x-0"]), ["a/x-0", "a/y-1", "a/z-2"]);
    }

    #[test]
    fn all_zones_may_change_at_once() {
        assert_eq!(seats(&["a/u-0", "a/v-1"], &["a/x-0", "a/y-1"]), ["a/u-2", "a/v-3"]);
    }
}
