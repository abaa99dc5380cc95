//! `strftime` over the calendar, in UTC.

use crate::error::{Result, fail};

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = [
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
    "Sunday",
];

/// A moment of the Gregorian calendar.
struct Moment {
    year: i64,
    /// From 0.
    month: usize,
    /// From 1.
    day: i64,
    /// From 0, since the first of January.
    day_of_year: i64,
    /// From 0, which is Monday.
    weekday: usize,
    second_of_day: i64,
}

impl Moment {
    fn new(seconds: i64) -> Moment {
        let days = seconds.div_euclid(86_400);
        // Howard Hinnant's days_from_civil, turned round: years start in March, eras have 400 years.
        let shifted = days + 719_468;
        let era = shifted.div_euclid(146_097);
        let day_of_era = shifted.rem_euclid(146_097);
        let year_of_era =
            (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_march_year =
            day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let march_month = (5 * day_of_march_year + 2) / 153;
        let month = ((march_month + 2) % 12) as usize;
        let year = year_of_era + era * 400 + i64::from(month < 2);
        let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
        let before = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334][month];
        let day = day_of_march_year - (153 * march_month + 2) / 5 + 1;
        Moment {
            year,
            month,
            day,
            day_of_year: before + i64::from(leap && month > 1) + day - 1,
            weekday: (days + 3).rem_euclid(7) as usize,
            second_of_day: seconds.rem_euclid(86_400),
        }
    }
}

/// The moment `seconds` after 1970 (UTC) in the words of `format`. Knows the directives of C's
/// `strftime` that name a date or a time, with the flag `-` against padding.
pub(super) fn strftime(format: &str, seconds: i64) -> Result<String> {
    let limit = 200_000_000_000;
    let moment = Moment::new(seconds.clamp(-limit, limit));
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let mut directive = chars.next();
        let bare = directive == Some('-');
        if bare {
            directive = chars.next();
        }
        let Some(directive) = directive else {
            fail!(TemplateFailed, "strftime: the format ends behind a %");
        };
        let second = moment.second_of_day;
        let (hour, minute) = (second / 3600, second / 60 % 60);
        let hour12 = (hour + 11) % 12 + 1;
        let (number, width, pad) = match directive {
            'd' => (moment.day, 2, '0'),
            'e' => (moment.day, 2, ' '),
            'm' => (moment.month as i64 + 1, 2, '0'),
            'y' => (moment.year.rem_euclid(100), 2, '0'),
            'Y' => (moment.year, 4, '0'),
            'C' => (moment.year.div_euclid(100), 2, '0'),
            'H' => (hour, 2, '0'),
            'k' => (hour, 2, ' '),
            'I' => (hour12, 2, '0'),
            'l' => (hour12, 2, ' '),
            'M' => (minute, 2, '0'),
            'S' => (second % 60, 2, '0'),
            'f' => (0, 6, '0'),
            'j' => (moment.day_of_year + 1, 3, '0'),
            'u' => (moment.weekday as i64 + 1, 1, '0'),
            'w' => ((moment.weekday as i64 + 1) % 7, 1, '0'),
            's' => (seconds, 1, '0'),
            'U' => {
                let sunday = (moment.weekday as i64 + 1) % 7;
                ((moment.day_of_year + 7 - sunday) / 7, 2, '0')
            }
            'W' => {
                let monday = moment.weekday as i64;
                ((moment.day_of_year + 7 - monday) / 7, 2, '0')
            }
            _ => {
                match directive {
                    'B' => out.push_str(MONTHS[moment.month]),
                    'b' | 'h' => out.push_str(&MONTHS[moment.month][..3]),
                    'A' => out.push_str(DAYS[moment.weekday]),
                    'a' => out.push_str(&DAYS[moment.weekday][..3]),
                    'p' => out.push_str(if hour < 12 { "AM" } else { "PM" }),
                    'P' => out.push_str(if hour < 12 { "am" } else { "pm" }),
                    'F' => out.push_str(&strftime("%Y-%m-%d", seconds)?),
                    'T' | 'X' => out.push_str(&strftime("%H:%M:%S", seconds)?),
                    'R' => out.push_str(&strftime("%H:%M", seconds)?),
                    'D' | 'x' => out.push_str(&strftime("%m/%d/%y", seconds)?),
                    'c' => out.push_str(&strftime("%a %b %e %H:%M:%S %Y", seconds)?),
                    // Python's moments know no time zone unless they are told one.
                    'z' | 'Z' => {}
                    '%' => out.push('%'),
                    'n' => out.push('\n'),
                    't' => out.push('\t'),
                    other => fail!(TemplateFailed, "strftime: %{other} is not known"),
                }
                continue;
            }
        };
        let text = number.to_string();
        if !bare {
            out.extend(std::iter::repeat_n(
                pad,
                usize::saturating_sub(width, text.len()),
            ));
        }
        out.push_str(&text);
    }
    Ok(out)
}
