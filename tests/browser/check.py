#!/usr/bin/env python3
"""The page for people, in a real browser: stories against a running gateway and simulated providers.

    scripts/browser-check [WORD ...]        only stories whose names contain a word

Every story ends with the same questions: did a script of a stranger run, did a window pop up, did the browser complain
(console, Content-Security-Policy), does the page scroll sideways? Screenshots go to target/browser, to be looked at."""
import json
import re
import sys
import tempfile
import time
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import expect, sync_playwright

sys.path.insert(0, str(Path(__file__).parent))
from world import SECRET, TARGET, Api, World, until  # noqa: E402

SHOTS = TARGET / "browser"
CHROMIUM = "/usr/bin/chromium"
DESKTOP, PHONE = {"width": 1200, "height": 900}, {"width": 360, "height": 740}
PAGE = 50  # results on a page of the page

# What may not do anything but be read: markup, direction overrides, terminal escapes, controls, endless words.
MARKUP = '<img src=x onerror="window.pwned=1"><script>window.pwned=1</script>'
HOSTILE = {
    "markup": MARKUP,
    "closing": '"></bdi></main><svg onload=window.pwned=1><a href="javascript:window.pwned=1">x</a>',
    "direction": "invoice\u202egnp.exe \u2066\u2067hidden\u2069 \u200fright",
    "terminal": "\x1b[31mred\x1b]0;title\x07 \x00\x9b2J\x7f\b",
    "invisible": "zero\u200bwidth \ufeff \u00ad \U000e0041 \u2028line\u2029",
    "stacked": "Z" + "\u0335\u0321\u034e" * 60,
    "template": "${window.pwned=1} {{constructor.constructor('window.pwned=1')()}} %3Cscript%3E &lt;b&gt;",
}
WATCH = """
window.violations = [];
addEventListener('securitypolicyviolation', (event) => window.violations.push(`${event.violatedDirective} ${event.blockedURI}`));
"""


def shown(text, lines=False):
    """How the page writes a stranger's text: odd characters by name."""
    def name(char):
        import unicodedata
        if char in "\u200c\u200d" or (lines and char in "\n\t"):
            return char
        odd = unicodedata.category(char) in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
        return f"U+{ord(char):04X}" if odd else char
    return "".join(map(name, text))


class Stories:
    def __init__(self, browser, world):
        self.browser, self.world = browser, world
        self.port, _ = world.gateway()
        self.api = Api(self.port)

    @contextmanager
    def page(self, port=None, viewport=DESKTOP, complaints=(), **options):
        """A tab of its own. `complaints` are patterns of console messages that belong to the story."""
        context = self.browser.new_context(viewport=viewport, **options)
        context.set_default_timeout(15_000)
        context.add_init_script(WATCH)
        page = context.new_page()
        said, asked = [], []
        page.on("console", lambda message: said.append(message.text) if message.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: said.append(f"uncaught: {error}"))
        page.on("dialog", lambda dialog: (said.append(f"a window popped up: {dialog.message}"), dialog.dismiss()))
        page.on("request", lambda request: asked.append(request.url))
        page.base = f"http://127.0.0.1:{port or self.port}"
        page.asked = asked
        try:
            yield page
            self.is_unharmed(page, said, complaints)
        except BaseException:
            SHOTS.mkdir(parents=True, exist_ok=True)
            page.screenshot(path=SHOTS / "failed.png")
            print(f"    the page when it failed: {SHOTS / 'failed.png'}; the console: {said}", file=sys.stderr)
            raise
        finally:
            context.close()

    def is_unharmed(self, page, said, complaints):
        unexpected = [text for text in said if not any(re.search(pattern, text) for pattern in complaints)]
        assert not unexpected, unexpected
        assert page.evaluate("window.pwned") is None, "a stranger's script ran"
        assert page.evaluate("window.violations") == [], page.evaluate("window.violations")
        foreign = [url for url in page.asked if not url.startswith((page.base + "/", "data:"))]
        assert not foreign, f"it asked elsewhere: {foreign}"
        self.fits(page)
        strange = page.evaluate("document.querySelectorAll('main :is(img, script, iframe, object, style, [style*=url], [onload], [onerror])').length")
        assert strange == 0, "a stranger's element is in the page"
        links = page.eval_on_selector_all("main a[href]", "links => links.map(link => link.getAttribute('href'))")
        assert all(link.startswith("#/") for link in links), links

    @staticmethod
    def fits(page):
        inner, wide = page.evaluate("[innerWidth, document.scrollingElement.scrollWidth]")
        assert wide <= inner, f"it scrolls sideways: {wide} in {inner} pixels"

    @staticmethod
    def shot(page, name, **options):
        SHOTS.mkdir(parents=True, exist_ok=True)
        page.wait_for_function("document.getAnimations().every(a => a.effect.getTiming().iterations === Infinity || a.playState === 'finished')")
        page.screenshot(path=SHOTS / f"{name}.png", **options)

    def open(self, page, batch, query=""):
        page.goto(f"{page.base}/#/batches/{batch}{query}")
        expect(page.locator(".results .thing").first).to_be_visible()

    # The stories.

    def an_empty_gateway_says_how_to_begin(self):
        with self.page() as page:
            page.goto(page.base)
            expect(page.locator(".empty")).to_contain_text("No batches yet")
            expect(page.locator(".empty code")).to_contain_text(f"curl {page.base}/batches")
            expect(page.locator("#health")).to_have_text("ready")
            self.shot(page, "empty")

    def the_list_is_the_one_of_the_api_and_grows_by_itself(self):
        made = [self.api.submit([f"Say {n}"], metadata={"project": "arc-5", "n": str(n)}) for n in range(23)]
        for batch in made:
            self.api.ended(batch)
        ids = lambda page: page.eval_on_selector_all(".row h2 a", "links => links.map(link => link.textContent)")  # noqa: E731
        with self.page() as page:
            page.goto(page.base)
            expect(page.locator(".row")).to_have_count(20)
            assert ids(page) == made[::-1][:20]
            new = self.api.submit(["Say hello"])
            expect(page.locator(".row h2 a").first).to_have_text(new)
            assert ids(page) == [new, *made[::-1][:19]]
            page.get_by_role("link", name="Older").click()
            expect(page.locator(".row")).to_have_count(4)
            assert ids(page) == made[::-1][19:]
            page.go_back()
            expect(page.locator(".row")).to_have_count(20)
            page.go_forward()
            page.get_by_role("link", name="Newest").click()
            expect(page.locator(".row h2 a").first).to_have_text(new)

    def filters_are_those_of_the_api(self):
        self.api.ended(self.api.submit(["Say 0"]))
        wanted = self.api.submit(["Say 1"], metadata={"team's name": "a&b=c #1"})
        self.api.ended(wanted)
        query = "/batches?status=ended&metadata.team%27s%20name=a%26b%3Dc%20%231&limit=20"
        status, answer = self.api.call("GET", query)
        refused = [] if status == 200 else [r"422"]
        with self.page(complaints=refused) as page:
            page.goto(page.base)
            page.get_by_label("Status").select_option("ended")
            page.get_by_label("Metadata").fill("team's name")
            page.get_by_label("is", exact=True).fill("a&b=c #1")
            page.keyboard.press("Enter")
            if status == 200:
                expect(page.locator(".row h2 a")).to_have_text([wanted])
                assert [batch["id"] for batch in answer["data"]] == [wanted]
            else:
                expect(page.locator(".empty")).to_contain_text(answer["detail"])
            page.reload()
            expect(page.get_by_label("Metadata")).to_have_value("team's name")
            page.get_by_role("link", name="Show all").click()
            expect(page.locator(".row").nth(1)).to_be_visible()

    def progress_moves_and_the_end_is_told(self):
        self.world.dwell(60)
        asked = [f"Move {n}" for n in range(40)]
        known = self.api.ended(self.api.submit(["Say 0", "Say 1"]))
        assert known["counts"]["cached"] + known["counts"]["succeeded"] >= 2
        batch = self.api.submit(["Say 0", "Say 1", *asked], chunk=20, metadata={"owner": "evals"})
        with self.page() as page:
            page.goto(page.base)
            row = page.locator(".row").first
            bar = row.get_by_role("progressbar")
            expect(bar).to_have_attribute("aria-valuetext", "4 % done: 2 cached, 40 pending")
            row.locator("a").click()
            big = page.get_by_role("progressbar")
            expect(big).to_have_attribute("aria-valuenow", "2")
            expect(page.locator(".results .thing")).to_have_count(42)
            expect(page.locator(".results [data-status=pending].thing")).to_have_count(40)
            page.get_by_text("Chunks", exact=True).click()
            expect(page.locator(".chunks .thing")).to_have_count(2)
            told = self.api.ok("GET", f"/batches/{batch}/chunks")["chunks"]
            for chunk, item in zip(told, page.locator(".chunks .thing").all(), strict=True):
                expect(item).to_contain_text(chunk["id"])
                expect(item).to_contain_text(chunk["provider_batch_id"] or "")
            self.shot(page, "running")
            self.world.sim.ok("POST", "/_sim/clock", {"advance_s": 120})
            expect(big).to_have_attribute("aria-valuenow", "42", timeout=20_000)
            expect(page.locator(".head")).to_contain_text("ended")
            expect(page.locator("#live")).to_contain_text("The batch is ended: 42 succeeded, 0 failed.")
            expect(page.locator(".results [data-status=succeeded].thing")).to_have_count(42)
            expect(page.locator(".legend .paid dd")).to_contain_text("40")
            expect(page.locator(".chunks .thing").first).to_contain_text("settled")
        self.world.dwell(0.3)

    def results_stand_in_order_with_their_names_on_every_page(self):
        prompts = [{"custom_id": f"mine-{n:03}", "messages": [{"role": "user", "content": f"Ordered {n}\n\tand a second line"}]} for n in range(120)]
        batch = self.api.submit(prompts, samples=2, chunk=17)
        self.api.ended(batch)
        results = self.api.results(batch)
        with self.page() as page:
            self.open(page, batch)
            for offset in range(0, len(results), PAGE):
                expected = results[offset:offset + PAGE]
                expect(page.locator(".range").first).to_have_text(f"{offset} – {offset + len(expected) - 1} of 240")
                expect(page.locator(".results .thing .place").first).to_have_text(place(expected[0]))
                assert page.locator(".results .place").all_text_contents() == [place(result) for result in expected]
                assert page.locator(".results .name").all_text_contents() == [result["custom_id"] for result in expected]
                assert page.locator(".results .says").all_text_contents() == [result["completion"] for result in expected]
                if offset + PAGE < len(results):
                    page.get_by_role("link", name="Next").first.click()
            page.go_back()
            expect(page.locator(".results .place").first).to_have_text(place(results[150]))
            page.get_by_label("Go to").first.fill("77")
            page.keyboard.press("Enter")
            expect(page.locator(".results .place").first).to_have_text(place(results[77]))
            assert page.url.endswith(f"#/batches/{batch}?offset=77")
            page.reload()
            expect(page.locator(".results .name").first).to_have_text(results[77]["custom_id"])

    def everything_works_with_the_keyboard_alone(self):
        self.world.dwell(60)
        batch = [self.api.submit([f"Keys {n}" for n in range(120)]) for _ in range(4)][-1]
        with self.page() as page:
            page.goto(page.base)
            expect(page.locator(".row").nth(3)).to_be_visible()
            focused = lambda: page.evaluate("document.activeElement.textContent")  # noqa: E731
            for _ in range(30):
                page.keyboard.press("Tab")
                if page.evaluate("document.activeElement.matches('.row a')"):
                    break
            assert focused() == batch, focused()
            outline = page.evaluate("getComputedStyle(document.activeElement.closest('.row')).outlineStyle")
            assert outline == "solid", "where the focus is must be seen"
            page.keyboard.press("ArrowDown")
            page.keyboard.press("ArrowDown")
            third = focused()
            page.keyboard.press("Home")
            assert focused() == batch
            page.keyboard.press("ArrowDown")
            page.keyboard.press("ArrowDown")
            page.keyboard.press("Enter")
            expect(page.locator("h1")).to_have_text(third)
            page.keyboard.press("Escape")
            expect(page.locator(".row").first).to_be_visible()
            until("the focus to be where it came from", lambda: focused() == third)
            page.keyboard.press("Home")
            page.keyboard.press("Enter")
            expect(page.locator("h1")).to_have_text(batch)

            def tab_to(name):
                for _ in range(40):
                    page.keyboard.press("Tab")
                    if focused() == name:
                        return
                raise AssertionError(f"no way to {name!r} by Tab")
            tab_to("Next")
            page.keyboard.press("Enter")
            expect(page.locator(".results .place").first).to_have_text("50")
            assert focused() == "Next", "the focus stays on the pager"
            page.keyboard.press("Enter")
            expect(page.locator(".results .place").first).to_have_text("100")
            page.evaluate("document.querySelector('h1').focus()")
            tab_to("Cancel")
            page.keyboard.press("Enter")
            expect(page.get_by_role("dialog")).to_contain_text("Cancel this batch?")
            assert focused() == "Leave it"
            self.shot(page, "dialog")
            page.keyboard.press("Escape")
            expect(page.get_by_role("dialog")).to_have_count(0)
            assert self.api.batch(batch)["status"] == "running", "Escape is no"
            assert focused() == "Cancel"
            page.keyboard.press("Enter")
            page.keyboard.press("Tab")
            page.keyboard.press("Enter")
            expect(page.locator(".head")).to_contain_text("ended", timeout=20_000)
            counts = self.api.batch(batch)["counts"]
            assert counts["canceled"] > 0
            expect(page.locator(".legend .canceled dd")).to_contain_text(f"{counts['canceled']} ")
            tab_to("Delete")
            page.keyboard.press("Enter")
            page.keyboard.press("Tab")
            page.keyboard.press("Enter")
            expect(page.locator(".row").first).to_be_visible()
            expect(page.locator(".row h2 a", has_text=batch)).to_have_count(0)
            assert self.api.call("GET", f"/batches/{batch}")[0] == 404
        self.world.dwell(0.3)

    def hostile_strings_are_inert(self):
        words = list(HOSTILE.values())
        prompts = [{"custom_id": word[:256], "messages": [{"role": "user", "content": f"{word}\n{word}"}]} for word in words]
        prompts += [{"custom_id": "endless-" + "w" * 248, "messages": [{"role": "user", "content": "w" * 30_000}]}]
        metadata = {word[:60]: word for word in words}
        bad = {"messages": [{"role": "user", "content": "[[error:invalid_request]]"}], "custom_id": "bad " + MARKUP}
        made = []
        for model in ['claude-"><script>window.pwned=1</script>', "claude-\u202e" + "m" * 200]:
            made.append(self.api.submit([*prompts, bad], model=model, metadata=metadata))
        # A provider that refuses a whole batch may put anything into its reasons.
        reason = {"code": MARKUP, "message": " ".join(words), "param": MARKUP, "line": None}
        self.world.sim.ok("POST", "/_sim/faults", [{"match": {"provider": "openai", "route": "batches.create"}, "fault": {"validation_errors": [reason]}, "times": 0}])
        made.append(self.api.submit(["Refused"], model='gpt-<b onmouseover="window.pwned=1">'))
        for batch in made:
            self.api.ended(batch)
        self.world.sim.ok("DELETE", "/_sim/faults")
        for viewport, name in ((DESKTOP, "hostile"), (PHONE, "hostile-phone")):
            with self.page(viewport=viewport) as page:
                page.goto(page.base)
                row = page.locator(".row", has=page.get_by_role("link", name=made[0]))
                expect(row).to_be_visible()
                for word in words:
                    expect(row.locator(".labels")).to_contain_text(clip(shown(word), word, 80))
                assert page.evaluate("getComputedStyle(document.querySelector('.label bdi')).unicodeBidi") == "isolate"
                self.fits(page)
                for batch in made:
                    self.open(page, batch)
                    self.fits(page)
                    for result, item in zip(self.api.results(batch), page.locator(".results .thing").all(), strict=True):
                        expect(item.locator(".place")).to_have_text(str(result["index"]))
                        if result["custom_id"]:
                            expect(item.locator(".name")).to_have_text(shown(result["custom_id"]))
                        if result["model"]:
                            expect(item.locator(".meta")).to_contain_text(clip(shown(result["model"]), result["model"], 120))
                        told = result["completion"] or result["error"]["message"]
                        assert raw(item.locator(".says bdi").last if result["completion"] else item.locator(".says bdi").nth(1)) == clip(shown(told, lines=True), told, 1200), told
                    page.keyboard.press("Tab")
                    self.shot(page, f"{name}-{made.index(batch)}")
                self.open(page, made[0])
                more = page.get_by_role("button", name="Show more of 30,000 characters")
                more.click()
                more.click()
                expect(more).to_have_count(0)
                self.fits(page)
        with self.page(complaints=[r"status of 4(04|22)"]) as page:
            for address in (f"#/batches/{MARKUP}", "#/batches/../../metrics", "#/batches/%00", "#/nowhere", "#/?after=<b>&status=\"'", "#/batches/x?offset=-1e9"):
                page.goto("about:blank")
                page.goto(f"{page.base}/{address}")
                expect(page.locator("main h1, main .empty").first).to_be_visible()

    def codes(self, batch):
        """How many results failed with which code."""
        return Counter(result["error"]["code"] for result in self.api.results(batch) if result["error"])

    def failures_are_counted_by_code_and_never_all_is_read(self):
        big = 4_200
        bad = {100: "[[error:invalid_request]] 1", 3_000: "[[error:invalid_request]] 2", 4_190: "[[error:context_length]] 3"}
        batch = self.api.submit([bad.get(n, f"Big {n}") for n in range(big)], chunk=2_000)
        found = self.api.ended(batch)
        assert found["counts"]["failed"] == 3, found["counts"]
        small = self.api.submit(["Fine", *["[[error:invalid_request]]"] * 3, "[[error:not_found]]"])
        self.api.ended(small)
        with self.page() as page:
            self.open(page, small)
            codes = self.codes(small)
            expect(page.locator(".codes li")).to_have_count(len(codes))
            for code, count in codes.items():
                line = page.locator(".codes li", has_text=code)
                expect(line.locator(".count")).to_have_text(str(count))
            self.shot(page, "failures")
            page.asked.clear()
            self.open(page, batch)
            expect(page.locator(".codes + p")).to_contain_text("1 of 3 failures found in the first 2,000 results")
            rows = sum(int(re.search(r"limit=(\d+)", url)[1]) for url in page.asked if "/results?" in url)
            assert rows <= 2_000 + PAGE, f"{rows} results were read for one look at a batch of {big}"
            page.get_by_role("button", name="Look further").click()
            # No button and no *counting* any more: only now are the counts the last ones.
            expect(page.locator(".codes + p")).to_be_empty(timeout=30_000)
            expect(page.locator(".codes .count")).to_have_text(sorted(map(str, self.codes(batch).values()), reverse=True))
            page.locator(".codes a").first.click()
            expect(page.locator(".results .thing").first).to_have_attribute("data-status", "failed")
            expect(page.locator(".results .place").first).to_have_text("100")
            page.get_by_role("link", name="Last").first.click()
            expect(page.locator(".results .place").last).to_have_text("4,199")

    def what_a_batch_waits_for_is_told(self):
        """Reasons are rare in a world where all goes well: here they are laid into the API's own answers."""
        self.world.dwell(60)
        batch = self.api.submit([f"Wait {n}" for n in range(30)])
        created = self.api.batch(batch)["created_at"]
        why = [{"reason": "token_limit", "detail": MARKUP + " of 1,000,000 tokens 1,000,000 are in use", "prompts": 29, "since": created},
               {"reason": "in_doubt", "detail": None, "prompts": 1, "since": created}]
        more = {"waiting": why, "run": "arc-5~2", "retry_of": batch, "cost": {"spent_usd": "0.0000155", "saved_usd": "12.5"}}

        def tell(route):
            answer = route.fetch()
            told = answer.json()
            for found in told.get("data", [told]):
                found.update(more)
            route.fulfill(response=answer, json=told)
        with self.page() as page:
            page.route(re.compile(r"/batches(\?|/batch_[0-9a-f]+$)"), tell)
            page.goto(page.base)
            expect(page.locator(".row").first.locator(".foot")).to_contain_text("waiting: token_limit, in_doubt")
            page.locator(".row a").first.click()
            expect(page.locator(".waiting li")).to_have_count(2)
            expect(page.locator(".waiting li").first).to_contain_text("token_limit 29 prompts, for")
            expect(page.locator(".waiting li").first).to_contain_text(MARKUP)
            expect(page.locator(".head")).to_contain_text("run arc-5~2")
            expect(page.locator(".facts")).to_contain_text("$0.0000155")
            expect(page.locator(".facts a")).to_have_attribute("href", f"#/batches/{batch}")
            self.shot(page, "waiting")
        self.api.ok("POST", f"/batches/{batch}/cancel")
        self.api.ended(batch)
        self.world.dwell(0.3)

    def a_phone_and_the_dark_have_their_own_looks(self):
        batch = self.api.submit([f"Ordered {n}\n\tand a second line" for n in range(40)] + [f"Looks {n}" for n in range(70)] + ["[[error:invalid_request]]"] * 2,
                                metadata={"project": "arc-5", "split": "validation"})
        self.api.ended(batch)
        looks = {
            "desktop": {},
            "dark": {"color_scheme": "dark"},
            "phone": {"viewport": PHONE, "device_scale_factor": 2, "has_touch": True, "is_mobile": True, "reduced_motion": "reduce"},
            "phone-dark": {"viewport": PHONE, "device_scale_factor": 2, "color_scheme": "dark", "is_mobile": True},
            "contrast": {"forced_colors": "active"},
        }
        for name, options in looks.items():
            with self.page(**options) as page:
                page.goto(page.base)
                expect(page.locator(".row").first).to_be_visible()
                self.fits(page)
                self.shot(page, f"{name}-list")
                self.open(page, batch)
                self.shot(page, f"{name}-batch")
                if "reduced_motion" in options:
                    moving = page.evaluate("document.getAnimations().length")
                    assert moving == 0, "nothing moves for those who asked for it"

    def a_key_is_asked_for_and_kept_in_the_tab_alone(self):
        port, _ = self.world.gateway(keyed=True)
        api = Api(port, SECRET)
        batch = api.submit(["Say 0"])
        with self.page(port, complaints=[r"401"]) as page:
            page.goto(f"{page.base}/#/batches/{batch}")
            expect(page.get_by_label("Key")).to_be_focused()
            self.shot(page, "key")
            page.keyboard.type("bg_default_wrong")
            page.keyboard.press("Enter")
            expect(page.locator(".key")).to_contain_text("this key is not known here")
            page.get_by_label("Key").fill("schlüssel")
            page.keyboard.press("Enter")
            assert page.evaluate("document.querySelector('#key').validationMessage") != ""
            page.get_by_label("Key").fill(SECRET)
            page.keyboard.press("Enter")
            expect(page.locator("h1")).to_have_text(batch)
            page.reload()
            expect(page.locator("h1")).to_have_text(batch)
            kept = page.evaluate("[Object.values(sessionStorage), localStorage.length, document.cookie, location.href]")
            assert kept[:3] == [[SECRET], 0, ""] and SECRET not in kept[3], kept
            assert not any(SECRET in url for url in page.asked)
            page.get_by_role("button", name="Forget key").click()
            expect(page.get_by_label("Key")).to_be_visible()
            assert page.evaluate("sessionStorage.length") == 0
        with self.page(port, viewport=PHONE, complaints=[r"401"]) as page:
            page.goto(page.base)
            expect(page.get_by_label("Key")).to_be_visible()

    def the_gateway_may_go_away_and_come_back(self):
        port, child = self.world.gateway()
        batch = self.api.submit(["Say 0", "Say 1"])
        self.api.ended(batch)
        with self.page(port, complaints=[r"ERR_CONNECTION_REFUSED|ERR_CONNECTION_RESET|ERR_EMPTY_RESPONSE|ERR_SOCKET_NOT_CONNECTED"]) as page:
            page.goto(page.base)
            expect(page.locator(".row").first).to_be_visible()
            child.terminate()
            child.wait(15)
            expect(page.locator("#trouble")).to_contain_text("cannot be reached", timeout=25_000)
            expect(page.locator("#trouble")).to_contain_text("Trying again")
            expect(page.locator("#health")).to_have_text("unreachable")
            expect(page.locator(".row").first).to_be_visible()
            self.shot(page, "away")
            page.get_by_role("button", name="Try now").click()
            expect(page.locator("#trouble")).to_be_visible()
            self.world.gateway(port=port)
            expect(page.locator("#trouble")).to_be_hidden(timeout=25_000)
            expect(page.locator("#health")).to_have_text("ready")
            new = self.api.submit(["Say 2"])
            expect(page.locator(".row h2 a").first).to_have_text(new, timeout=20_000)

    def a_clock_that_is_wrong_does_not_matter(self):
        self.api.submit(["Say 0"])
        with self.page() as page:
            page.add_init_script("{ const real = Date.now; Date.now = () => real() + 3 * 3600e3; }")
            page.goto(page.base)
            expect(page.locator(".row .when").first).to_contain_text(re.compile(r"just now|\b\d+ s ago"))

    def a_hidden_tab_asks_for_nothing(self):
        self.world.dwell(60)
        batch = self.api.submit([f"Hidden {n}" for n in range(10)])
        with self.page() as page:
            page.goto(page.base)
            expect(page.locator(".row").first).to_contain_text("running")
            hide = "hidden => { Object.defineProperty(document, 'hidden', { configurable: true, get: () => hidden }); document.dispatchEvent(new Event('visibilitychange')); }"
            page.evaluate(hide, True)
            page.asked.clear()
            page.wait_for_timeout(3_000)  # that nothing comes can only be waited for
            assert page.asked == [], page.asked
            self.api.ok("POST", f"/batches/{batch}/cancel")
            self.api.ended(batch)
            page.evaluate(hide, False)
            expect(page.locator(".row").first).to_contain_text("ended", timeout=5_000)
        self.world.dwell(0.3)


def place(result):
    return str(result["index"]) + (f"/{result['sample']}" if result["sample"] else "")


def clip(written, text, limit):
    """As the page cuts a long text: `limit` UTF-16 units of it, no half characters."""
    units = text.encode("utf-16-le")
    if len(units) <= 2 * limit:
        return written
    return shown(units[:2 * limit].decode("utf-16-le", "ignore"), lines=True) + "…"


def raw(locator):
    return locator.evaluate("node => node.textContent")


def main():
    words = sys.argv[1:]
    expect.set_options(timeout=20_000)
    names = [name for name, member in vars(Stories).items() if callable(member) and "_" in name and not name.startswith("_")]
    names = [name for name in names if name not in ("is_unharmed",)]
    names = [name for name in names if not words or any(word in name for word in words)]
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="batchgate-browser-") as directory, World(directory) as world, sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM)
        stories = Stories(browser, world)
        for name in names:
            start = time.monotonic()
            print(f"browser: {name.replace('_', ' ')}", end="", flush=True)
            getattr(stories, name)()
            print(f" · {time.monotonic() - start:.1f} s", flush=True)
        browser.close()
    print(f"browser: {len(names)} stories hold, in {time.monotonic() - began:.0f} s; screenshots in {SHOTS}")


if __name__ == "__main__":
    main()
