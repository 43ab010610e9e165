//! How long flows are: a distribution that a measurement published, one from a file, or one size for all.
//!
//! Why: results on flow completion times compare only where flows have the sizes that others used.
//! From: points of the cumulative distributions as simulators share them; each constant names its source. Between two points the
//! size grows linearly with the part, as in those simulators, so that the mean is exact.
//! Not here: when flows arrive (`sim`).
//! Invariant: parts never fall, sizes rise, the last part is 1, and each flow has at least one byte.

use std::fs;
use std::path::Path;

use plimsoll_document::nearest;
use plimsoll_units::Bytes;

/// The distribution of flows' sizes.
#[derive(Clone, Debug, PartialEq)]
pub struct FlowSizes {
    /// Bytes, and the part of all flows that have at most these bytes.
    points: Vec<(f64, f64)>,
}

/// A web search cluster: the query and background traffic of the DCTCP paper (Alizadeh et al., SIGCOMM 2010, Figure 4), as pFabric
/// (SIGCOMM 2013, §5.1) uses it; points of the traffic generators of HPCC and HKUST.
const WEB_SEARCH: [(f64, f64); 12] = [
    (0.0, 0.0),
    (1e4, 0.15),
    (2e4, 0.20),
    (3e4, 0.30),
    (5e4, 0.40),
    (8e4, 0.53),
    (2e5, 0.60),
    (1e6, 0.70),
    (2e6, 0.80),
    (5e6, 0.90),
    (1e7, 0.97),
    (3e7, 1.0),
];

/// A data mining cluster: VL2 (Greenberg et al., SIGCOMM 2009, Figure 2); points of HKUST's traffic generator.
const DATA_MINING: [(f64, f64); 13] = [
    (0.0, 0.0),
    (180.0, 0.1),
    (216.0, 0.2),
    (560.0, 0.3),
    (900.0, 0.4),
    (1_100.0, 0.5),
    (1_870.0, 0.6),
    (3_160.0, 0.7),
    (1e4, 0.8),
    (4e5, 0.9),
    (3.16e6, 0.95),
    (1e8, 0.98),
    (1e9, 1.0),
];

/// A Hadoop cluster: "Inside the Social Network's (Datacenter) Network" (Roy et al., SIGCOMM 2015, Figure 6); points of HPCC's
/// traffic generator (SIGCOMM 2019, §5.1).
const HADOOP: [(f64, f64); 20] = [
    (0.0, 0.0),
    (100.0, 0.01),
    (200.0, 0.02),
    (300.0, 0.05),
    (350.0, 0.15),
    (400.0, 0.20),
    (500.0, 0.30),
    (600.0, 0.40),
    (700.0, 0.50),
    (1e3, 0.60),
    (2e3, 0.67),
    (7e3, 0.70),
    (3e4, 0.72),
    (5e4, 0.82),
    (8e4, 0.87),
    (1.2e5, 0.90),
    (3e5, 0.95),
    (1e6, 0.975),
    (2e6, 0.99),
    (1e7, 1.0),
];

/// The published distributions, by name.
const PUBLISHED: [(&str, &[(f64, f64)]); 3] =
    [("web_search", &WEB_SEARCH), ("data_mining", &DATA_MINING), ("hadoop", &HADOOP)];

/// Largest file of a distribution, and its most points.
const MOST_BYTES: Bytes = Bytes::new(1_000_000);
const MOST_POINTS: usize = 10_000;
/// The largest flow.
const LARGEST: f64 = 1e12;

impl FlowSizes {
    /// Reads what a scenario says: the name of a published distribution, a size, or the path of a file, from `folder` on.
    pub(crate) fn read(text: &str, folder: &Path) -> Result<Self, (String, String)> {
        if let Some((_, points)) = PUBLISHED.iter().find(|(name, _)| *name == text) {
            return Ok(Self { points: points.to_vec() });
        }
        if let Ok(size) = text.parse::<Bytes>() {
            let size = size.as_u64() as f64;
            let help = "write a size from 1B to 1TB".to_owned();
            return match (1.0..=LARGEST).contains(&size) {
                true => Ok(Self { points: vec![(size, 1.0)] }),
                false => Err((format!("flows of {text}"), help)),
            };
        }
        if !text.contains(['.', '/']) {
            let names = PUBLISHED.map(|(name, _)| name);
            let near = nearest(text, names).map(|near| format!("did you mean `{near}`? "));
            let all = names.join("`, `");
            let help = format!(
                "{}there are `{all}`, a size such as `20kB`, and files such as `sizes.csv`",
                near.unwrap_or_default()
            );
            return Err((format!("there is no distribution of flow sizes `{text}`"), help));
        }
        let path = folder.join(text);
        let wrong = |error: String| (format!("{}: {error}", path.display()), HELP.to_owned());
        // Opening a pipe would wait for its other end.
        let regular = fs::metadata(&path).map_err(|error| wrong(error.to_string()))?.is_file();
        if !regular {
            return Err(wrong("it is no regular file".to_owned()));
        }
        let content = plimsoll_policy::read_text(&path, MOST_BYTES).map_err(wrong)?;
        Self::parse(&content).map_err(|error| match error {
            (0, error) => wrong(error),
            (line, error) => (format!("{}, line {line}: {error}", path.display()), HELP.to_owned()),
        })
    }

    /// Reads lines of `bytes,part`, after one header at most; the error has the line's number, or 0 for the whole file.
    fn parse(text: &str) -> Result<Self, (usize, String)> {
        let mut points: Vec<(f64, f64)> = Vec::new();
        let lines = (1..).zip(text.lines().map(str::trim));
        let mut lines = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#')).peekable();
        lines.next_if(|(_, line)| is_header(line));
        for (number, line) in lines {
            let point = point(line).and_then(|point| follows(points.last().copied(), point));
            points.push(point.map_err(|error| (number, error))?);
            if points.len() > MOST_POINTS {
                return Err((number, format!("more than {MOST_POINTS} points")));
            }
        }
        match points.last() {
            None => Err((0, "it has no points".to_owned())),
            Some((size, _)) if *size < 1.0 => Err((0, "all its flows are empty".to_owned())),
            Some((_, part)) if *part < 1.0 => {
                Err((0, format!("the last part is {part} and not 1: larger flows are missing")))
            }
            Some(_) => Ok(Self { points }),
        }
    }

    /// The size below which this part of the flows lies, in whole bytes.
    #[must_use]
    pub fn at(&self, part: f64) -> u64 {
        let after = self.points.partition_point(|(_, reached)| *reached < part);
        let Some(&(size, reached)) = self.points.get(after) else { return self.largest() };
        let Some(&(least, before)) = after.checked_sub(1).and_then(|before| self.points.get(before)) else {
            return (size as u64).max(1);
        };
        ((least + (size - least) * (part - before) / (reached - before)) as u64).max(1)
    }

    /// The mean size in bytes.
    #[must_use]
    pub fn mean(&self) -> f64 {
        let (first, part) = self.points[0];
        let pieces = self.points.windows(2).map(|two| {
            let [(least, before), (most, reached)] = [two[0], two[1]];
            (reached - before) * f64::midpoint(least, most)
        });
        pieces.fold(first * part, |sum, piece| sum + piece).max(1.0)
    }

    fn largest(&self) -> u64 {
        self.points.last().map_or(1, |(size, _)| *size as u64).max(1)
    }
}

/// How a file of sizes looks.
const HELP: &str = "write a line `BYTES,PART` for each point of the cumulative distribution, such as `10000,0.15`, up to the part 1";

/// Whether a line names columns: none of its words is a number, not even `nan`.
fn is_header(line: &str) -> bool {
    words(line).all(|word| word.parse::<f64>().is_err())
}

fn words(line: &str) -> impl Iterator<Item = &str> {
    line.split([',', ' ', '\t']).filter(|word| !word.is_empty())
}

fn point(line: &str) -> Result<(f64, f64), String> {
    let mut words = words(line);
    let (Some(size), Some(part), None) = (words.next(), words.next(), words.next()) else {
        return Err("a line has a size and a part".to_owned());
    };
    let number = |word: &str, what: &str| {
        word.parse::<f64>().ok().filter(|value| value.is_finite()).ok_or(format!("{what} is no number"))
    };
    let (size, part) = (number(size, "the size")?, number(part, "the part")?);
    if !(0.0..=LARGEST).contains(&size) {
        return Err(format!("the size {size} is not between 0 and 1e12 bytes"));
    }
    if !(0.0..=1.0).contains(&part) {
        return Err(format!("the part {part} is not between 0 and 1"));
    }
    Ok((size, part))
}

fn follows(before: Option<(f64, f64)>, (size, part): (f64, f64)) -> Result<(f64, f64), String> {
    match before {
        Some((least, _)) if size <= least => Err(format!("the size {size} is not above {least}")),
        Some((_, reached)) if part < reached => Err(format!("the part {part} is below {reached}")),
        _ => Ok((size, part)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<FlowSizes, (usize, String)> {
        FlowSizes::parse(text)
    }

    /// pFabric §5.1 and HPCC §5.1 state these means, but for the tail's shape.
    #[test]
    fn published_distributions_have_their_means_and_quantiles() {
        let named = |name| FlowSizes::read(name, Path::new("")).expect("published");
        let (search, mining, hadoop) = (named("web_search"), named("data_mining"), named("hadoop"));
        assert!((1.5e6..1.8e6).contains(&search.mean()), "{}", search.mean());
        assert!((7e6..1.4e7).contains(&mining.mean()), "{}", mining.mean());
        assert!((1.0e5..1.4e5).contains(&hadoop.mean()), "{}", hadoop.mean());
        assert_eq!((search.at(0.53), search.at(0.6), search.at(1.0)), (80_000, 200_000, 30_000_000));
        assert_eq!((mining.at(0.5), hadoop.at(0.5), hadoop.at(1e-9)), (1_100, 700, 1));
    }

    #[test]
    fn a_file_has_points_with_and_without_a_header() {
        let sizes = read("bytes,part\n# small ones\n1000,0.5\n\n3000 1\n").expect("points");
        assert_eq!(sizes.points, [(1_000.0, 0.5), (3_000.0, 1.0)]);
        assert_eq!(
            (sizes.at(0.2), sizes.at(0.5), sizes.at(0.75), sizes.at(1.0)),
            (1_000, 1_000, 2_000, 3_000)
        );
        assert_eq!(sizes.mean(), 0.5 * 1_000.0 + 0.5 * 2_000.0);
    }

    #[test]
    fn a_hostile_file_says_which_line_is_wrong() {
        let wrong = |text: &str| read(text).expect_err(text);
        assert_eq!(wrong(""), (0, "it has no points".to_owned()));
        assert_eq!(wrong("1000,0.5\n900,1\n").0, 2);
        assert_eq!(wrong("1000,0.5\n2000,0.4\n"), (2, "the part 0.4 is below 0.5".to_owned()));
        assert_eq!(wrong("1000,0.5\n2000,0.9\n").0, 0);
        assert_eq!(wrong("1000,50\n"), (1, "the part 50 is not between 0 and 1".to_owned()));
        assert_eq!(wrong("1,2,3\n").0, 1);
        assert_eq!(wrong("x\ny\nz\n1000,1\n"), (2, "a line has a size and a part".to_owned()));
        assert_eq!(wrong("bytes,part\nsmall,0.5\n1000,1\n"), (2, "the size is no number".to_owned()));
        assert_eq!(wrong("# sizes\nnan,1\n"), (2, "the size is no number".to_owned()));
        assert_eq!(wrong("1,0.1\nnan,1").0, 2);
        assert_eq!(wrong("1e300,1\n").0, 1);
        assert_eq!(wrong("0,1\n"), (0, "all its flows are empty".to_owned()));
    }
}
