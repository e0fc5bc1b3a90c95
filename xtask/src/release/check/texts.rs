//! The SBOM, the manifests, the formula and the module, each read by the tool of its readers.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use super::{Checked, archive, tool, unpack, write};
use crate::release::{archives::output, bucket as archived, sums::sha256};

/// Validates an SBOM by the schema of `CycloneDX`.
const VALIDATE: &str = "\
    import sys\n\
    from cyclonedx.schema import SchemaVersion\n\
    from cyclonedx.validation.json import JsonStrictValidator\n\
    text = open(sys.argv[1], encoding='utf-8').read()\n\
    error = JsonStrictValidator(SchemaVersion.V1_5).validate_str(text)\n\
    sys.exit(f'{error}' if error else 0)\n";

/// Checks the SBOM, and that it has the libraries that everyone can see in the program.
pub fn sbom(checked: &Checked) -> Result<String, String> {
    let bytes = checked.file("tidegate.cdx.json")?;
    let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
    let file = folder.path().join("tidegate.cdx.json");
    write(&file, bytes)?;
    output(python(checked)?.args(["-c", VALIDATE]).arg(&file))?;
    let bom: serde_json::Value =
        serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    let names: Vec<_> =
        bom["components"].as_array().into_iter().flatten().map(|one| &one["name"]).collect();
    for library in ["tokio", "rusqlite", "wasmtime", "aws-sdk-cloudformation"] {
        if !names.iter().any(|name| *name == library) {
            return Err(format!("{library} is missing"));
        }
    }
    Ok(format!("{} libraries", names.len()))
}

/// Returns a Python with the packages of `packaging/requirements.txt`.
fn python(checked: &Checked) -> Result<Command, String> {
    let bin = installed(checked, "packaging", "packaging/requirements.txt")?;
    let mut python = Command::new(bin.join("python"));
    python.current_dir(&checked.release.root);
    Ok(python)
}

/// Returns the folder of the programs of the Python packages in the file `requirements`.
fn installed(checked: &Checked, name: &str, requirements: &str) -> Result<PathBuf, String> {
    let root = &checked.release.root;
    let mut venv = Command::new(root.join("infra/venv"));
    let bin = output(venv.args([name, requirements]).current_dir(root))?;
    Ok(PathBuf::from(String::from_utf8_lossy(&bin).trim()))
}

/// Validates the manifests of Kubernetes and KEDA by their schemas.
pub fn manifests(checked: &Checked) -> Result<String, String> {
    let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
    let mut python = python(checked)?;
    python.arg("packaging/check_manifests.py");
    for name in ["tidegate-kubernetes.yaml", "tidegate-keda.yaml"] {
        let file = folder.path().join(name);
        write(&file, checked.file(name)?)?;
        python.arg(file);
    }
    let kinds = output(&mut python)?;
    Ok(String::from_utf8_lossy(&kinds).trim().replace('\n', ", "))
}

/// Validates the compose example by its schema, and its settings and alerts of Prometheus.
pub fn compose(checked: &Checked) -> Result<String, String> {
    let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
    unpack(checked.file("tidegate-compose.tar.gz")?, folder.path())?;
    let example = folder.path().join("tidegate-compose");
    let root = &checked.release.root;
    output(Command::new(root.join("packaging/check_compose")).arg(&example))?;
    let mut promtool = tool(root, "promtool")?;
    promtool.current_dir(&example);
    output(promtool.args(["check", "config", "prometheus.yml"])).map(|_| String::new())
}

/// Validates the files for a bucket by the schemas of their platforms, and compares them with the program.
pub fn bucket(checked: &Checked) -> Result<String, String> {
    let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
    unpack(checked.file(archived::NAME)?, folder.path())?;
    let infra = installed(checked, "infra-check", "infra/requirements/check.txt")?;
    let github = installed(checked, "github-check", ".github/requirements.txt")?;
    let mut check = python(checked)?;
    check.args(["-B", "packaging/check_bucket.py"]);
    check.arg(archive::own_program(checked, folder.path())?);
    check.arg(infra.join("cfn-lint")).arg(github.join("check-jsonschema"));
    let found = output(check.arg(folder.path().join(archived::FOLDER)))?;
    Ok(String::from_utf8_lossy(&found).trim().to_owned())
}

/// Checks the chart with Helm's library.
pub fn chart(checked: &Checked) -> Result<String, String> {
    let name = format!("tidegate-chart-{}.tgz", checked.release.version);
    let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
    let file = folder.path().join(&name);
    write(&file, checked.file(&name)?)?;
    output(python(checked)?.arg("packaging/check_chart.py").arg(&file)).map(|_| String::new())
}

/// Checks the formula's syntax with Ruby, and its checksums.
pub fn formula(checked: &Checked) -> Result<String, String> {
    let text = String::from_utf8_lossy(checked.file("tidegate.rb")?).into_owned();
    let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
    let file = folder.path().join("tidegate.rb");
    write(&file, text.as_bytes())?;
    output(tool(&checked.release.root, "ruby")?.args(["-W0", "-c"]).arg(&file))?;
    let (mut url, mut archives) = ("", 0);
    for line in text.lines().map(str::trim) {
        if let Some(value) = quoted(line, "url ") {
            url = value;
        } else if let Some(sum) = quoted(line, "sha256 ") {
            let name = Path::new(url).file_name().unwrap_or_default().to_string_lossy();
            if sha256(checked.file(&name)?) != sum {
                return Err(format!("{name} has another checksum"));
            }
            archives += 1;
        }
    }
    if archives != checked.release.binaries.len() {
        return Err(format!("it has {archives} archives"));
    }
    Ok(format!("{archives} archives"))
}

/// Returns the text in quotes after `key`.
fn quoted<'a>(line: &'a str, key: &str) -> Option<&'a str> {
    line.strip_prefix(key)?.strip_prefix('"')?.strip_suffix('"')
}

/// Validates the module and its example with Terraform, as `infra/check --full` does for the source.
pub fn terraform(checked: &Checked) -> Result<String, String> {
    let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
    unpack(checked.file("terraform-aws-tidegate.tar.gz")?, folder.path())?;
    let module = folder.path().join("terraform-aws-tidegate");
    for file in ["README.md", "LICENSE", "variables.tf", "outputs.tf", "modules/function/main.tf"] {
        if !module.join(file).is_file() {
            return Err(format!("it lacks {file}"));
        }
    }
    let readme = fs::read_to_string(module.join("README.md")).map_err(|error| error.to_string())?;
    if readme.contains("@V") || !readme.contains("| `alarm_email` | required |") {
        return Err("README.md does not list the variables".into());
    }
    let mirror = std::env::var_os("TERRAFORM_MIRROR")
        .map(PathBuf::from)
        .or_else(|| Some("/opt/tf-plugins".into()).filter(|path: &PathBuf| path.is_dir()));
    let rc = folder.path().join("terraformrc");
    let text = mirror.map_or(String::new(), |mirror| {
        format!(
            "provider_installation {{\n  filesystem_mirror {{\n    path = \"{}\"\n  }}\n}}\n",
            mirror.display()
        )
    });
    write(&rc, text.as_bytes())?;
    let example = module.join("examples/complete");
    for args in
        [&["init", "-backend=false", "-input=false", "-no-color"][..], &["validate", "-no-color"]]
    {
        let mut terraform = Command::new("terraform");
        terraform.current_dir(&example).args(args);
        output(terraform.env("TF_CLI_CONFIG_FILE", &rc).env("CHECKPOINT_DISABLE", "1"))?;
    }
    output(Command::new("terraform").args(["fmt", "-check", "-recursive"]).arg(&module))?;
    Ok("valid, with its example".into())
}
