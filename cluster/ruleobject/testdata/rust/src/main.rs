//! Reads regular expressions, a line each in hexadecimal digits, and prints for each "ok", or why it does not compile.

use std::io::{self, BufRead, Write};

fn main() -> io::Result<()> {
    let mut out = io::stdout().lock();
    for line in io::stdin().lock().lines() {
        match regex::Regex::new(&decode(&line?)) {
            Ok(_) => writeln!(out, "ok")?,
            Err(err) => writeln!(out, "{}", err.to_string().replace('\n', " "))?,
        }
        out.flush()?;
    }
    Ok(())
}

fn decode(line: &str) -> String {
    let digit = |c: u8| (c as char).to_digit(16).expect("a hexadecimal digit") as u8;
    let bytes = line.as_bytes().chunks(2).map(|two| digit(two[0]) << 4 | digit(two[1]));
    String::from_utf8(bytes.collect()).expect("UTF-8")
}
