//! The page in a real browser, headless Chromium: what it shows, how it follows changes, how it is used with the keyboard,
//! and that texts of the cluster stay texts. With `INPLACE_WRITE_PICTURES=1` it writes the pictures of docs/images.

use std::fs;
use std::path::Path;

use serde_json::json;

use super::objects::{self, UID, WEB, status, task, web};
use super::{Dashboard, writes_pictures};
use crate::api_server::ApiServer;
use crate::support::browser::Browser;

/// The most bytes of a picture in the documentation.
const MOST_BYTES: u64 = 150_000;
/// The pictures: name, path of the page, what is on it.
const PICTURES: [(&str, &str, &str); 4] = [
    ("overview", "#/", "web-restart-x7k2p"),
    ("rollout", "#/rollout/shop/web-restart-x7k2p", "zone eu-1a"),
    ("pod", "#/pod/shop/POD", "until Ready"),
    ("workload", "#/workload/shop/gamestatefulset/arena", "release 2"),
];

struct Shown {
    api: ApiServer,
    dashboard: Dashboard,
    browser: Browser,
}

async fn shown(path: &str) -> Shown {
    let api = ApiServer::start().await;
    objects::put(&api);
    let dashboard = Dashboard::start(&api, &[]);
    let mut browser = Browser::start();
    browser.resize(1280, 800);
    browser.open(&format!("{}{path}", dashboard.url));
    browser.until("the state is live", "document.getElementById('state').textContent === 'live'");
    Shown { api, dashboard, browser }
}

#[tokio::test]
async fn the_page_shows_a_rollout_and_follows_it() {
    let Shown { api, dashboard: _dashboard, mut browser } = shown("#/").await;
    browser.until("both rollouts", "document.querySelectorAll('tbody')[0].rows.length === 2");
    browser.evaluate(
        "[...document.querySelectorAll('a')].find(a => a.textContent === 'web-restart-x7k2p').click()",
    );
    browser.until("its pods", &format!("document.querySelectorAll('.cell').length === {WEB}"));
    let zones = browser.evaluate("[...document.querySelectorAll('h3')].map(h => h.textContent).join()");
    assert_eq!(zones, "zone eu-1a,zone eu-1b,zone eu-1c");
    let name = web(39);
    let of = |name: &str| format!("document.querySelector('.cell[href$=\"{name}\"]')");
    assert_eq!(browser.evaluate(&format!("{}.dataset.state", of(&name))), "Waiting");
    // An element of another cell stays the same one.
    browser.evaluate(&format!("{}.mark = 1", of(&web(0))));
    for (phase, step, down) in [("Running", "Swap", None), ("Succeeded", "Ready", Some(67))] {
        api.edit("shop", &name, |pod| task(pod, &status(UID, phase, step, 2_100, down)));
        browser.until(phase, &format!("{}.dataset.state === '{phase}'", of(&name)));
    }
    assert!(browser.evaluate(&format!("{}.textContent", of(&name))).as_str().unwrap().contains("67 ms"));
    assert_eq!(browser.evaluate(&format!("{}.mark", of(&web(0)))), 1);
    // The legend shows only one state.
    browser.evaluate("document.querySelector('.legend [data-state=Failed]').click()");
    assert_eq!(
        browser.evaluate("[...document.querySelectorAll('.cell')].filter(cell => !cell.hidden).length"),
        1
    );
    // A pod, and its timeline.
    browser.evaluate(&format!("{}.click()", of(&name)));
    browser.until("its steps", "document.querySelector('.timeline ol').textContent.includes('Swap')");
    let line = browser.evaluate("[...document.querySelectorAll('.timeline ol')].at(-1).textContent");
    assert!(line.as_str().unwrap().contains("down 67 ms"), "{line}");
}

#[tokio::test]
async fn texts_of_the_cluster_are_never_markup() {
    let Shown { api, dashboard, mut browser } = shown("#/rollout/shop/web-restart-x7k2p").await;
    let attack = "<script>document.title='taken'</script><img src=x onerror=\"document.title='taken'\">";
    api.edit("shop", &web(23), |pod| {
        let mut failed = status(UID, "Failed", "Verify", 70_000, Some(88));
        (failed["message"], failed["reason"]) = (json!(attack), json!(attack));
        failed["containers"][0]["name"] = json!(attack);
        task(pod, &failed);
        pod["spec"]["containers"][0]["image"] = json!(attack);
    });
    api.edit_of("inplacerollouts", "shop", "web-restart-x7k2p", |rollout| {
        rollout["spec"]["containers"][0]["name"] = json!(attack);
        rollout["status"]["message"] = json!(attack);
        rollout["status"]["failures"][0]["message"] = json!(attack);
    });
    for (path, wanted) in [
        ("#/", "document.querySelector('code').textContent.includes('<script>')"),
        (
            "#/rollout/shop/web-restart-x7k2p",
            "document.querySelector('.cell[data-state=Failed]').title.includes('<script>')",
        ),
        (
            &format!("#/pod/shop/{}", web(23)),
            "document.querySelector('.operation').textContent.includes('onerror')",
        ),
        ("#/pod/shop/%3Cscript%3E%2F..%2F..", "document.title.startsWith('shop/<script>')"),
    ] {
        browser.open(&format!("{}{path}", dashboard.url));
        browser.until(path, wanted);
        assert_eq!(
            browser.evaluate("[document.scripts.length, document.images.length].join()"),
            "1,1",
            "{path}"
        );
        assert_ne!(browser.evaluate("document.title"), "taken");
    }
    // Even markup that a script inserts is refused by the policy of the page.
    let inserted = browser
        .evaluate("try { document.body.innerHTML = '<b></b>'; 'inserted' } catch (error) { error.name }");
    assert_eq!(inserted, "TypeError");
}

#[tokio::test]
async fn the_page_is_used_with_the_keyboard_and_keeps_the_focus() {
    let Shown { api, dashboard, mut browser } = shown("#/rollout/shop/web-restart-x7k2p").await;
    browser.until("its pods", &format!("document.querySelectorAll('.cell').length === {WEB}"));
    assert_eq!(
        browser.evaluate("document.querySelectorAll('.cell[tabindex=\"0\"]').length"),
        1,
        "one stop of the tab key"
    );
    browser.evaluate("document.querySelector('.cell').focus()");
    browser.press("ArrowRight");
    let second = "document.querySelectorAll('.cell')[1]";
    assert_eq!(browser.evaluate(&format!("document.activeElement === {second}")), true);
    let name = browser.evaluate(&format!("{second}.href.split('/').at(-1)"));
    assert!(
        browser
            .evaluate("document.querySelector('.detail').textContent")
            .as_str()
            .unwrap()
            .starts_with(name.as_str().unwrap())
    );
    api.edit("shop", name.as_str().unwrap(), |pod| {
        task(pod, &status(UID, "Failed", "Verify", 4_000, Some(71)));
    });
    browser.until("it has changed", &format!("{second}.dataset.state === 'Failed'"));
    assert_eq!(browser.evaluate(&format!("document.activeElement === {second}")), true);
    let unnamed = "[...document.querySelectorAll('a, button')].filter(one => !(one.ariaLabel || one.textContent.trim())).length";
    assert_eq!(browser.evaluate(unnamed), 0);
    // The end of the dashboard is said.
    drop(dashboard);
    browser.until("it has ended", "document.getElementById('state').textContent.includes('has ended')");
}

#[tokio::test]
async fn a_thousand_pods_are_usable() {
    let api = ApiServer::start().await;
    api.put(objects::rollout("big", UID, "Deployment/web", None, 9_000));
    api.edit_of("inplacerollouts", "shop", "big", |rollout| {
        rollout["status"] = json!({"phase": "Running", "startedAt": objects::ago(9_000)});
    });
    let name = |number: usize| format!("web-7f9c5d-{number:04}");
    for number in 0..1000 {
        api.put(objects::pod("Deployment/web", &name(number), &format!("node-{}", number % 50)));
    }
    let dashboard = Dashboard::start(&api, &[]);
    let mut browser = Browser::start();
    browser.open(&format!("{}#/rollout/shop/big", dashboard.url));
    browser.until("all pods", "document.querySelectorAll('.many .cell').length === 1000");
    // Only the cells of the pods that have changed are built again.
    browser.evaluate(
        "globalThis.built = 0; const watched = new MutationObserver(list => { for (const one of list) built += one.addedNodes.length; }); \
         watched.observe(document.querySelector('.zones'), { childList: true, subtree: true });",
    );
    for number in (0..1000).step_by(10) {
        api.edit("shop", &name(number), |pod| task(pod, &status(UID, "Succeeded", "Ready", 4_000, Some(71))));
    }
    browser.until(
        "a hundred are done",
        "document.querySelectorAll('.cell[data-state=Succeeded]').length === 100",
    );
    assert_eq!(browser.evaluate("built"), 100);
}

/// The pictures of the documentation exist, are small enough, and are mentioned. Writes them if that is asked for.
#[tokio::test]
async fn pictures_of_the_dashboard() {
    if writes_pictures() {
        write_pictures().await;
    }
    let text = fs::read_to_string("docs/dashboard.md").unwrap();
    for (name, ..) in PICTURES {
        for scheme in ["light", "dark"] {
            let file = format!("images/dashboard-{name}-{scheme}.png");
            let bytes =
                fs::metadata(Path::new("docs").join(&file)).map(|found| found.len()).unwrap_or_default();
            assert!((1..=MOST_BYTES).contains(&bytes), "{file} has {bytes} bytes");
            assert!(text.contains(&file), "{file} is not in docs/dashboard.md");
        }
    }
}

async fn write_pictures() {
    let Shown { api, dashboard, mut browser } = shown("#/").await;
    let name = web(39);
    for (phase, step, pause) in [
        ("Running", "Pull", 900),
        ("Running", "Swap", 450),
        ("Running", "Verify", 750),
        ("Succeeded", "Ready", 100),
    ] {
        let down = matches!(step, "Verify" | "Ready").then_some(76);
        api.edit("shop", &name, |pod| task(pod, &status(UID, phase, step, 2_100, down)));
        tokio::time::sleep(std::time::Duration::from_millis(pause)).await;
    }
    api.edit_of("inplacerollouts", "shop", "web-restart-x7k2p", |rollout| {
        rollout["status"]["done"] = json!(24);
    });
    browser.until("the rollout has the pod", "document.body.textContent.includes('24 of 40')");
    for (picture, path, wanted) in PICTURES {
        let path = path.replace("POD", &name);
        browser.open(&format!("{}{path}", dashboard.url));
        browser.until(wanted, &format!("document.body.textContent.includes('{wanted}')"));
        let height =
            browser.evaluate("Math.ceil(document.querySelector('main').getBoundingClientRect().bottom)");
        browser.resize(1280, u32::try_from(height.as_u64().unwrap().clamp(420, 1100)).unwrap());
        for scheme in ["light", "dark"] {
            browser.prefer(scheme);
            browser.picture(Path::new(&format!("docs/images/dashboard-{picture}-{scheme}.png")));
        }
        browser.resize(1280, 800);
    }
}
