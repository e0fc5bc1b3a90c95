//! The formula of Homebrew, which installs the archives.

use super::{Files, Release, archives, sums::sha256};

/// Returns `tidegate.rb`, with the archives that `files` has.
pub fn make(release: &Release, files: &Files) -> Files {
    let of_system = |triples: [(&str, &str); 2]| {
        triples
            .into_iter()
            .filter_map(|(processor, triple)| {
                let archive = archives::name(triple);
                let sum = sha256(files.get(&archive)?);
                let url = release.url(&archive);
                Some(format!(
                    "    on_{processor} do\n      url \"{url}\"\n      sha256 \"{sum}\"\n    end\n"
                ))
            })
            .collect::<String>()
    };
    let macos = of_system([("arm", "aarch64-apple-darwin"), ("intel", "x86_64-apple-darwin")]);
    let linux =
        of_system([("arm", "aarch64-unknown-linux-musl"), ("intel", "x86_64-unknown-linux-musl")]);
    let systems: Vec<String> = [("macos", macos), ("linux", linux)]
        .into_iter()
        .filter(|(_, archives)| !archives.is_empty())
        .map(|(system, archives)| format!("  on_{system} do\n{archives}  end\n"))
        .collect();
    let formula = format!(
        r##"class Tidegate < Formula
  desc "Durable job queue for work at the right time and at the right rate"
  homepage "https://github.com/tidegate/tidegate"
  version "{version}"
  license "Apache-2.0"

{systems}
  def install
    bin.install "tidegate"
    man1.install Dir["man/man1/*.1"]
    bash_completion.install "completions/tidegate.bash" => "tidegate"
    zsh_completion.install "completions/_tidegate"
    fish_completion.install "completions/tidegate.fish"
    doc.install "THIRD-PARTY-LICENSES.txt"
  end

  service do
    run [opt_bin/"tidegate", "serve", "--data", var/"lib/tidegate"]
    keep_alive true
    log_path var/"log/tidegate.log"
    error_log_path var/"log/tidegate.log"
  end

  test do
    assert_match version.to_s, shell_output("#{{bin}}/tidegate --version")
  end
end
"##,
        version = release.version,
        systems = systems.join("\n"),
    );
    [("tidegate.rb".to_owned(), formula.into_bytes())].into()
}
