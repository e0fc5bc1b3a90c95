use tidegate_engine::memory::MemoryStore;

use super::*;

const OLD: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
const NEW: &str = "//////////////////////////////////////////8=";

fn keys(text: &str) -> KeySource {
    KeySource::Given(Keys::parse(text).unwrap())
}

fn letter() -> Value {
    json!({
        "config": {
            "queue": "mail",
            "target": {
                "url": "http://127.0.0.1:9/",
                "signing_secret": ["secret1", "secret2"],
                "basic_auth": {"username": "ann", "password": "secret3"},
                "headers": {"authorization": "secret4"},
            },
            "callback_signing_secret": "secret5",
        },
        "version": 1,
    })
}

fn set(name: &str, was: u64, item: &Value) -> Vec<Txn> {
    vec![vec![Write::SetItem {
        kind: ItemKind::Type,
        name: name.into(),
        was,
        version: was + 1,
        bytes: Some(item.to_string().into_bytes()),
    }]]
}

async fn read(store: &dyn JobStore) -> Value {
    let items = store.items(ItemKind::Type).await.unwrap();
    items.last().unwrap().read().unwrap_or_else(Value::String)
}

#[tokio::test]
async fn secrets_are_encrypted_and_come_back() {
    let plain: SharedStore = Arc::new(MemoryStore::new());
    let store = SealedStore::new(Arc::clone(&plain), keys(OLD));
    JobStore::commit(&store, set("letter", 0, &letter())).await.unwrap();
    assert_eq!(read(&store).await, letter());
    let stored = read(&*plain).await;
    let text = stored.to_string();
    assert!(!text.contains("secret1") && text.matches(SEALED).count() == 4, "{text}");
    assert_eq!(stored["config"]["target"]["url"], "http://127.0.0.1:9/");
    let mut shown = stored;
    without_secrets(&mut shown);
    assert!(shown["config"]["target"]["basic_auth"].is_null() && !shown.to_string().contains('$'));
}

#[tokio::test]
async fn nothing_is_encrypted_where_there_is_no_secret() {
    let plain: SharedStore = Arc::new(MemoryStore::new());
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("key");
    let store = SealedStore::new(Arc::clone(&plain), KeySource::File(file.clone()));
    let bare = json!({"config": {"target": {"url": "x", "headers": {}, "signing_secret": []}}});
    JobStore::commit(&store, set("letter", 0, &bare)).await.unwrap();
    assert_eq!((read(&store).await, read(&*plain).await), (bare.clone(), bare));
    assert!(!file.exists(), "a key is made for the first secret");
}

#[tokio::test]
async fn an_old_key_decrypts_and_the_first_one_encrypts() {
    let plain: SharedStore = Arc::new(MemoryStore::new());
    let before = SealedStore::new(Arc::clone(&plain), keys(OLD));
    JobStore::commit(&before, set("letter", 0, &letter())).await.unwrap();
    let after = SealedStore::new(Arc::clone(&plain), keys(&format!("{NEW},\n{OLD}")));
    assert_eq!(read(&after).await, letter());
    JobStore::commit(&after, set("letter", 1, &letter())).await.unwrap();
    let alone = SealedStore::new(Arc::clone(&plain), keys(NEW));
    assert_eq!(read(&alone).await, letter());
    let old = read(&before).await;
    assert!(old.as_str().unwrap().contains("which this server does not have"), "{old}");
}

#[tokio::test]
async fn a_changed_or_moved_ciphertext_makes_its_type_unreadable() {
    let plain: SharedStore = Arc::new(MemoryStore::new());
    let store = SealedStore::new(Arc::clone(&plain), keys(OLD));
    JobStore::commit(&store, set("letter", 0, &letter())).await.unwrap();
    let stored = read(&*plain).await;
    let changes: [&dyn Fn(&mut Value); 4] = [
        &|item| {
            let text = item["config"]["target"]["headers"][SEALED].as_str().unwrap().to_owned();
            let last = if text.ends_with('A') { "B" } else { "A" };
            let changed = format!("{}{last}", &text[..text.len() - 1]);
            item["config"]["target"]["headers"][SEALED] = changed.into();
        },
        &|item| item["config"]["target"]["headers"] = item["config"]["target"]["basic_auth"].take(),
        &|item| item["config"]["target"]["headers"][SEALED] = "v1.x".into(),
        &|item| item["config"]["target"]["headers"][SEALED] = "v2.a.b".into(),
    ];
    for (index, change) in changes.into_iter().enumerate() {
        let mut item = stored.clone();
        change(&mut item);
        plain.commit(set("letter", index as u64 + 1, &item)).await.unwrap();
        assert!(read(&store).await.is_string(), "{index}");
    }
    // The secrets of one type are none of another.
    plain.commit(set("other", 0, &stored)).await.unwrap();
    assert!(read(&store).await.as_str().unwrap().contains("damaged"));
}

#[tokio::test]
async fn a_key_file_is_made_once_for_its_owner() {
    use std::os::unix::fs::MetadataExt as _;
    let plain: SharedStore = Arc::new(MemoryStore::new());
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("key");
    let open = || SealedStore::new(Arc::clone(&plain), KeySource::File(file.clone()));
    JobStore::commit(&open(), set("letter", 0, &letter())).await.unwrap();
    assert_eq!(std::fs::metadata(&file).unwrap().mode() & 0o777, 0o600);
    let text = std::fs::read_to_string(&file).unwrap();
    JobStore::commit(&open(), set("letter", 1, &letter())).await.unwrap();
    assert_eq!(std::fs::read_to_string(&file).unwrap(), text);
    assert_eq!(read(&open()).await, letter());
    std::fs::write(&file, "no key").unwrap();
    assert!(read(&open()).await.as_str().unwrap().contains("base64"));
    assert!(JobStore::commit(&open(), set("letter", 2, &letter())).await.is_err());
    std::fs::remove_file(&file).unwrap();
    assert!(read(&open()).await.as_str().unwrap().contains("which this server does not have"));
    let elsewhere = dir.path().join("elsewhere");
    std::fs::write(&elsewhere, &text).unwrap();
    std::os::unix::fs::symlink(&elsewhere, &file).unwrap();
    assert!(read(&open()).await.as_str().unwrap().contains("symbolic link"));
}

#[tokio::test]
async fn a_key_file_is_whole_or_absent() {
    let plain: SharedStore = Arc::new(MemoryStore::new());
    let dir = tempfile::tempdir().unwrap();
    let (file, new) = (dir.path().join("key"), dir.path().join("key.new"));
    let store = SealedStore::new(Arc::clone(&plain), KeySource::File(file.clone()));
    // The disk accepts no part of it.
    std::fs::create_dir(&new).unwrap();
    assert!(JobStore::commit(&store, set("letter", 0, &letter())).await.is_err());
    assert!(!file.exists(), "no part of a key is left");
    std::fs::remove_dir(&new).unwrap();
    // A server that crashed has left parts.
    std::fs::write(&new, "a longer text than a key, which a crash has left, has 45 bytes").unwrap();
    std::fs::write(&file, "\n").unwrap();
    JobStore::commit(&store, set("letter", 0, &letter())).await.unwrap();
    assert!(Keys::parse(&std::fs::read_to_string(&file).unwrap()).is_ok() && !new.exists());
    let again = SealedStore::new(plain, KeySource::File(file));
    assert_eq!(read(&again).await, letter());
}

#[tokio::test]
async fn no_key_is_created_while_one_is_missing() {
    let plain: SharedStore = Arc::new(MemoryStore::new());
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("key");
    let open = || SealedStore::new(Arc::clone(&plain), KeySource::File(file.clone()));
    JobStore::commit(&open(), set("letter", 0, &letter())).await.unwrap();
    let key = std::fs::read_to_string(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
    let store = open();
    let refused = JobStore::commit(&store, set("other", 0, &letter())).await.unwrap_err();
    let refused = refused.chain().to_string();
    assert!(refused.contains("put the key file back") && !file.exists(), "{refused}");
    // A type without secrets needs none.
    let bare = json!({"config": {"target": {"url": "x"}}});
    JobStore::commit(&store, set("bare", 0, &bare)).await.unwrap();
    std::fs::write(&file, key).unwrap();
    JobStore::commit(&store, set("other", 0, &letter())).await.unwrap();
    let types = JobStore::items(&store, ItemKind::Type).await.unwrap();
    assert!(types.iter().all(|item| item.bytes.is_ok()), "{types:?}");
}

#[test]
fn keys_have_a_form_and_show_nothing() {
    let keys = Keys::parse(&format!("{OLD}\n{NEW}\n")).unwrap();
    let shown = format!("{keys:?}");
    assert!(!shown.contains("AAEC") && !shown.contains("//"), "{shown}");
    let many = [OLD; MAX_KEYS + 1].join(",");
    for bad in ["", " \n", "AAEC", "not base64", &OLD[1..], &format!("{OLD}x"), &many] {
        assert_eq!(Keys::parse(bad).unwrap_err(), BadKeys, "{bad}");
    }
}
