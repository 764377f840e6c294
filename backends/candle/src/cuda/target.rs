//! The GPUs and drivers that this binary's kernels run on.
//!
//! Input: the text of the compiled kernels (PTX), and facts about a GPU. Output: a reason why the GPU cannot
//! run this binary, if there is one. What must hold: a binary for another GPU is refused at the start.
//! Otherwise flash attention's kernels, which only run on GPUs of their own generation, would silently leave
//! their output undefined.

/// A compute capability: generation and version within it, such as (9, 0).
pub(crate) type Capability = (u32, u32);

/// The kernels' target, as PTX names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Target {
    /// The version of CUDA whose drivers compile this PTX, at least.
    cuda: (u32, u32),
    capability: Capability,
    scope: Scope,
}

/// The GPUs, other than of the exact capability, that run a target's PTX.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scope {
    /// All later ones.
    Later,
    /// Later ones of the same generation (`sm_100f`).
    Family,
    /// None (`sm_90a`).
    Exact,
}

/// Facts about a GPU and its driver.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Card {
    pub(crate) capability: Capability,
    /// The newest version of CUDA that the driver supports, as the driver gives it: 13000 is 13.0.
    pub(crate) driver: u32,
}

impl Target {
    /// The target that a PTX text names in the directives `.version` and `.target`.
    pub(crate) fn from_ptx(ptx: &str) -> Option<Self> {
        let directive = |name: &str| {
            let mut words = ptx.lines().map(str::split_whitespace);
            words.find_map(|mut words| (words.next() == Some(name)).then(|| words.next())?)
        };
        let (major, minor) = directive(".version")?.split_once('.')?;
        let (major, minor): (u32, u32) = (major.parse().ok()?, minor.parse().ok()?);
        // PTX 8.0 came with CUDA 12.0 and 9.0 with 13.0. The second numbers run alike, or the PTX's ahead.
        let cuda = (major + 4, if major < 9 { minor.min(5) } else { minor });
        let name = directive(".target")?.trim_end_matches(',').strip_prefix("sm_")?;
        let digits = name.trim_end_matches(|letter: char| letter.is_ascii_lowercase());
        let number: u32 = digits.parse().ok()?;
        let scope = match &name[digits.len()..] {
            "" => Scope::Later,
            "f" => Scope::Family,
            _ => Scope::Exact,
        };
        Some(Self { cuda, capability: (number / 10, number % 10), scope })
    }

    /// Why the card cannot run the binary's PTX, if it cannot.
    pub(crate) fn refusal(self, card: Card) -> Option<String> {
        let (major, minor) = self.cuda;
        if card.driver < major * 1000 + minor * 10 {
            let (driver, version) = (card.driver / 1000, card.driver % 1000 / 10);
            return Some(format!(
                "the GPU's driver supports CUDA {driver}.{version}, but this binary was compiled with CUDA \
                 {major}.{minor}: install a newer driver"
            ));
        }
        let fits = match self.scope {
            Scope::Later => card.capability >= self.capability,
            Scope::Family => self.is_of_same_generation(card),
            Scope::Exact => card.capability == self.capability,
        };
        (!fits).then(|| format!("{}: {}", self.compiled_for(card), rebuild(card)))
    }

    /// Why the card cannot run flash attention's kernels, if it cannot. They are compiled for one generation.
    pub(crate) fn flash_refusal(self, card: Card) -> Option<String> {
        let fits = self.is_of_same_generation(card);
        (!fits).then(|| {
            format!(
                "{}, which cannot run its flash attention: {}, or set USE_FLASH_ATTENTION=False, which is slower",
                self.compiled_for(card),
                rebuild(card)
            )
        })
    }

    fn is_of_same_generation(self, card: Card) -> bool {
        card.capability.0 == self.capability.0 && card.capability.1 >= self.capability.1
    }

    fn compiled_for(self, card: Card) -> String {
        let ((major, minor), (own, version)) = (self.capability, card.capability);
        format!(
            "this binary was compiled for compute capability {major}.{minor}, and this GPU has {own}.{version}"
        )
    }
}

fn rebuild(card: Card) -> String {
    let (major, minor) = card.capability;
    format!("build it with CUDA_COMPUTE_CAP={major}{minor}")
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;

    fn target(version: &str, name: &str) -> Target {
        Target::from_ptx(&format!(
            "//\n// a comment\n\n.version {version}\n.target {name}\n.address_size 64\n"
        ))
        .unwrap()
    }

    fn card(capability: Capability) -> Card {
        Card { capability, driver: 13_000 }
    }

    #[test]
    fn a_target_is_read_from_the_kernels() {
        let later = Scope::Later;
        for (version, name, cuda, capability, scope) in [
            ("9.0", "sm_80", (13, 0), (8, 0), later),
            ("9.1", "sm_90a", (13, 1), (9, 0), Scope::Exact),
            ("8.4", "sm_89", (12, 4), (8, 9), later),
            ("8.8", "sm_120f, debug", (12, 5), (12, 0), Scope::Family),
            ("9.0", "sm_103", (13, 0), (10, 3), later),
        ] {
            assert_eq!(target(version, name), Target { cuda, capability, scope }, "{version} {name}");
        }
        for broken in ["", ".version 9.0\n", ".target sm_80\n", ".version x.y\n.target sm_80\n"] {
            assert_eq!(Target::from_ptx(broken), None, "{broken:?}");
        }
    }

    #[test]
    fn a_card_runs_the_kernels_of_its_capability_and_of_earlier_ones_that_allow_it() {
        // For each card: whether it runs the kernels, and whether it runs flash attention's.
        for (name, capability, runs, runs_flash) in [
            ("sm_80", (7, 5), false, false),
            ("sm_80", (8, 0), true, true),
            ("sm_80", (8, 9), true, true),
            ("sm_89", (8, 6), false, false),
            ("sm_80", (9, 0), true, false),
            ("sm_90a", (9, 0), true, true),
            ("sm_90a", (10, 0), false, false),
            ("sm_90a", (8, 9), false, false),
            ("sm_100f", (10, 3), true, true),
            ("sm_100f", (12, 0), false, false),
        ] {
            let (target, card) = (target("9.0", name), card(capability));
            assert_eq!(target.refusal(card).is_none(), runs, "{name} {capability:?}");
            assert_eq!(target.flash_refusal(card).is_none(), runs_flash, "{name} {capability:?}");
        }
        assert_eq!(
            target("9.0", "sm_80").flash_refusal(card((9, 0))).unwrap(),
            "this binary was compiled for compute capability 8.0, and this GPU has 9.0, which cannot run its flash \
             attention: build it with CUDA_COMPUTE_CAP=90, or set USE_FLASH_ATTENTION=False, which is slower"
        );
    }

    #[test]
    fn an_older_driver_is_refused() {
        let target = target("9.0", "sm_80");
        for (driver, refusal) in [
            (
                12_090,
                Some(
                    "the GPU's driver supports CUDA 12.9, but this binary was compiled with CUDA 13.0: install a newer driver",
                ),
            ),
            (13_000, None),
            (13_020, None),
        ] {
            assert_eq!(target.refusal(Card { capability: (8, 0), driver }).as_deref(), refusal);
        }
    }
}
