//! How a registry says which login it wants: the header `WWW-Authenticate`.

/// What to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Challenge {
    /// Fetch a token there, for this service.
    Bearer { realm: String, service: Option<String> },
    /// Send user and password.
    Basic,
}

/// The first challenge that we can answer, one for a token before others.
pub(crate) fn parse<'a>(headers: impl Iterator<Item = &'a str>) -> Option<Challenge> {
    let mut found = None;
    for (scheme, parameters) in headers.flat_map(challenges) {
        let parameter = |name: &str| {
            let found = parameters.iter().find(|(other, _)| other.eq_ignore_ascii_case(name));
            found.map(|(_, value)| value.clone())
        };
        if scheme.eq_ignore_ascii_case("bearer") {
            if let Some(realm) = parameter("realm") {
                return Some(Challenge::Bearer { realm, service: parameter("service") });
            }
        } else if scheme.eq_ignore_ascii_case("basic") {
            found = Some(Challenge::Basic);
        }
    }
    found
}

type Parameters = Vec<(String, String)>;

/// `Scheme name=value, name="value", Other name=value`. What cannot be read ends the list.
fn challenges(mut text: &str) -> Vec<(String, Parameters)> {
    let mut found: Vec<(String, Parameters)> = Vec::new();
    loop {
        text = text.trim_start_matches([' ', '\t', ',']);
        let end = text.find([' ', '\t', ',', '=']).unwrap_or(text.len());
        let (word, rest) = text.split_at(end);
        if word.is_empty() {
            return found;
        }
        let Some(value) = rest.strip_prefix('=') else {
            found.push((word.to_owned(), Vec::new()));
            text = rest;
            continue;
        };
        let Some((_, parameters)) = found.last_mut() else { return found };
        let (value, rest) = match value.strip_prefix('"') {
            Some(quoted) => match unquote(quoted) {
                Some(both) => both,
                None => return found,
            },
            None => {
                let (value, rest) = value.split_at(value.find([' ', '\t', ',']).unwrap_or(value.len()));
                (value.to_owned(), rest)
            }
        };
        parameters.push((word.to_owned(), value));
        text = rest;
    }
}

/// What is between the quotes, and what comes after them.
fn unquote(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Some((value, &text[at + 1..])),
            '\\' => value.push(chars.next()?.1),
            c => value.push(c),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bearer(realm: &str, service: Option<&str>) -> Option<Challenge> {
        Some(Challenge::Bearer { realm: realm.into(), service: service.map(str::to_owned) })
    }

    #[test]
    fn the_login_that_is_wanted_is_found() {
        for (headers, want) in [
            (
                &[r#"Bearer realm="https://a/t",service="s, \"q\"",scope="x""#][..],
                bearer("https://a/t", Some("s, \"q\"")),
            ),
            (&["bearer realm=https://a/t"], bearer("https://a/t", None)),
            (&["Basic realm=\"x\""], Some(Challenge::Basic)),
            (&["Basic realm=\"x\", Bearer realm=\"y\""], bearer("y", None)),
            (&["Basic", "Bearer realm=\"y\""], bearer("y", None)),
            (&["Negotiate", "Basic"], Some(Challenge::Basic)),
            (&["Bearer service=\"s\""], None),
            (&["Bearer realm=\"open"], None),
            (&["Bearer realm=\"open\\"], None),
            (&["=x", ",,,", "", "=\"\"", "Digest realm=a"], None),
        ] {
            assert_eq!(parse(headers.iter().copied()), want, "{headers:?}");
        }
    }
}
