from dataclasses import replace

import psutil
import pytest

from tests.dashboard.hostile_texts import TEXTS
from tests.dashboard.made_run import made_group
from tests.node.dashboard.asked import answering, trained
from tests.node.dashboard.browser import served, write_rounds

pytestmark = [pytest.mark.browser, pytest.mark.processes]

TYPE = "document.querySelector('textarea').value = arguments[0]"
PICK = "document.querySelector('.asking select').value = arguments[0]"
BOTH = "document.querySelector('.asking [name=base]').checked = true"
ASK = "document.querySelector('.asking > button').click()"
DONE = "return document.querySelectorAll('.verdict').length === arguments[0]"
SEEN = """
window.seen = new Set();
new MutationObserver(() => {
  for (const each of document.querySelectorAll('.completion pre')) seen.add(each.textContent);
}).observe(document.querySelector('main'), { subtree: true, childList: true, characterData: true });
const real = window.fetch;
const slowly = () => new TransformStream({
  async transform(text, out) {
    for (const line of text.split(/(?<=\\n)/)) {
      out.enqueue(line);
      await new Promise((go) => { setTimeout(go, 20); });
    }
  },
});
window.fetch = async (path, ...more) => {
  const answer = await real(path, ...more);
  if (!String(path).includes('/ask?')) return answer;
  const texts = answer.body.pipeThrough(new TextDecoderStream()).pipeThrough(slowly());
  return new Response(texts.pipeThrough(new TextEncoderStream()));
};
"""
"""Record the texts that the page shows; the page receives one event at a time."""


@pytest.fixture
def asking(tmp_path, browser):
    folder = trained(tmp_path / "run")
    write_rounds(folder, [1, 2], levels={"gcd/1": 0.5, "chain_sum/1": 0.5})
    folder.write_status({"state": "stopped", "time": 1.79e9, "pid": 1, "peers": []})
    with served(tmp_path / "run", **{"policy.model": "tiny"}) as site:
        browser.open(site.told[-1], "ask")
        browser.until("return document.querySelectorAll('.asking option').length === 3")
        yield site


def test_both_models_stream_an_answer_to_a_task_sample(browser, asking):
    browser.run(f"{SEEN} {PICK}; {BOTH}; {ASK}", "gcd")
    browser.until(DONE, 2)
    text = browser.text()
    assert "Question of gcd, level" in text and "step-00000010" in text and "untrained" in text
    verdicts = "[...document.querySelectorAll('.verdict')]"
    rewards = browser.run(f"return {verdicts}.map((each) => Number(each.innerText))")
    assert all(0 <= each <= 1 for each in rewards)
    assert browser.run("return seen.has('')"), "the completion is shown before its first text"
    browser.assert_harmless(asking.port)


def test_sample_button_inserts_a_recent_prompt(browser, tmp_path):
    folder = trained(tmp_path / "run")
    prompts = {"gcd": "What is the gcd of 4 and 6?\nReply with it.", "sums": "1 + 1 ="}
    prompts["long"] = "x" * 400
    folder.groups.write_bytes(
        b"".join(
            replace(made_group(env, "own"), prompt=prompt).line(number)
            for number, (env, prompt) in enumerate(prompts.items(), 1)
        )
    )
    folder.write_status({"state": "stopped", "time": 1.79e9, "pid": 1, "peers": []})
    with served(tmp_path / "run", **{"policy.model": "tiny"}) as site:
        browser.open(site.told[-1], "ask")
        browser.count(".samples button", 2)
        browser.run("[...document.querySelectorAll('.samples button')].at(-1).click()")
        typed = browser.run("return document.querySelector('textarea').value")
        assert typed == prompts["gcd"], "the newest prompt is first"
        browser.assert_harmless(site.port)


def test_typed_prompt_is_shown_as_text_without_reward(browser, asking):
    hostile = " ".join(TEXTS[:3])
    browser.run(TYPE, hostile)
    browser.run(ASK)
    browser.until(DONE, 1)
    assert browser.run("return document.querySelector('.group > pre').textContent") == hostile
    assert "No reward: it was not found among the swarm's tasks" in browser.text()
    browser.assert_harmless(asking.port)


def test_page_shows_hostile_answers_as_text(browser, asking):
    """A poisoned policy could write any of these texts."""
    lines = """
    const told = arguments[0].flatMap((text) => [
      { event: 'model', name: text, base: false }, { event: 'text', text },
      { event: 'opinion', reward: null, unscored: text }]);
    const all = [{ event: 'question', prompt: arguments[0][0], family: arguments[0][1], level: 1 },
      { event: arguments[0][0] }, { event: '__proto__' }, ...told,
      { event: 'error', error: arguments[0][2] }].map((each) => JSON.stringify(each) + '\\n');
    const real = window.fetch;
    window.fetch = (path, ...more) => String(path).includes('/ask?')
      ? Promise.resolve(new Response(all.join(''))) : real(path, ...more);
    """
    browser.run(lines, [text.encode(errors="replace").decode() for text in TEXTS])
    browser.run(ASK)
    browser.until(DONE, len(TEXTS))
    for turn in (browser.desktop, browser.phone):
        turn()
        browser.assert_harmless(asking.port)


def test_stop_or_leaving_the_page_ends_the_answer(browser, asking):
    for leave in (ASK, "location.hash = '#/swarm'"):
        browser.run(ASK)
        browser.until("return document.querySelector('.newer').innerText.includes('loading')")
        workers = answering()
        assert workers
        browser.run(leave)
        assert not psutil.wait_procs(workers, timeout=120)[1]
        browser.until("return [...document.querySelectorAll('.asking > button, h3')].length > 0")
    assert browser.errors() == []


def test_page_reports_a_missing_checkpoint(browser, asking):
    asking.folder.checkpoints.rename(asking.folder.root / "elsewhere")
    browser.run(ASK)
    message = browser.until("return document.querySelector('.problem')?.innerText")
    assert "no checkpoint of the policy yet" in message
