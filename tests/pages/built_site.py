"""Checks of the site for `make docs`: no warnings, no network, no broken links."""

from __future__ import annotations

import inspect
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from support import ROOT

import gradxform as gx

SITE = ROOT / "docs/_build/html"
SPHINX = (sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q")
OUTSIDE = ("http", "https", "mailto", "data")
pytestmark = pytest.mark.timeout(900)  # the build runs four notebooks


class Page(HTMLParser):
    """The anchors, links and loaded files of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.ids |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if "src" in given:
            self.loaded.append(given["src"])
        if tag == "link" and given.get("rel") in ("stylesheet", "icon", "preload"):
            self.loaded.append(given["href"])


@pytest.fixture(scope="module")
def pages() -> dict[Path, Page]:
    """The site, built anew: a page that is gone must not lie there for links to find."""
    shutil.rmtree(SITE, ignore_errors=True)
    command = [*SPHINX, "-E", "-b", "html", ROOT / "docs", SITE]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    return {path: Page(path) for path in sorted(SITE.rglob("*.html"))}


def missing(pages: dict[Path, Page], page: Path, link: str) -> bool:
    """Whether a link leads to no file or no anchor."""
    parts = urlsplit(link)
    target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
    if not target.is_file():
        return True
    return bool(parts.fragment) and target in pages and unquote(parts.fragment) not in pages[target].ids


def test_every_link_leads_somewhere(pages: dict[Path, Page]) -> None:
    assert len(pages) > 40
    inside = [(page, link) for page, found in pages.items() for link in found.links + found.loaded]
    inside = [(page, link) for page, link in inside if urlsplit(link).scheme not in OUTSIDE and link != "#"]
    assert len(inside) > 2000
    lost = {(str(page.relative_to(SITE)), link) for page, link in inside if missing(pages, page, link)}
    assert not lost


def test_a_link_that_leads_nowhere_is_noticed(pages: dict[Path, Page]) -> None:
    index = SITE / "index.html"
    assert not missing(pages, index, "concepts/flat-view.html#what-follows-from-it")
    assert missing(pages, index, "concepts/flat-view.html#nothing")
    assert missing(pages, index, "concepts/nothing.html")


def test_a_page_loads_nothing_from_elsewhere(pages: dict[Path, Page]) -> None:
    loaded = {link for found in pages.values() for link in found.loaded}
    assert loaded
    assert not [link for link in loaded if urlsplit(link).scheme in ("http", "https") or link.startswith("//")]
    sheets = "".join(path.read_text() for path in SITE.rglob("*.css"))
    assert not re.findall(r"(?:@import|url\()\s*[\"']?(?:https?:)?//", sheets)


def test_a_public_name_without_an_entry_is_an_error(tmp_path: Path) -> None:
    """The build fails if one name is taken out of the reference."""
    source = tmp_path / "docs"
    subprocess.run(["cp", "-r", ROOT / "docs", source], check=True)
    entry = source / "reference/clipping.md"
    assert ".. autofunction:: clip_rms\n" in entry.read_text()
    entry.write_text(entry.read_text().replace(".. autofunction:: clip_rms\n", ""))
    command = [*SPHINX, "-b", "dummy", "-D", "nb_execution_mode=off", source, tmp_path / "out"]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    assert built.returncode != 0
    assert "the public name gx.clip_rms has no entry in the reference" in built.stderr


def test_every_picture_is_described_and_used(pages: dict[Path, Page]) -> None:
    texts = [path.read_text() for path in pages]
    for picture in (ROOT / "docs/pictures").rglob("*.*"):
        tags = [tag for text in texts for tag in re.findall(rf"<img[^>]*{picture.name}[^>]*>", text)]
        assert tags, picture.name
        assert all(re.search(r'alt="[^"]{20,}"', tag) for tag in tags), picture.name


def test_the_text_for_machines_has_every_page_and_every_name(pages: dict[Path, Page]) -> None:
    listed = re.findall(r"\]\((\S+\.html)\): \S", (SITE / "llms.txt").read_text())
    made = {"index.html", "genindex.html", "search.html"}
    assert sorted(listed) == sorted({str(page.relative_to(SITE)) for page in pages} - made)
    text = (SITE / "llms-full.txt").read_text()
    assert not re.search(r"^(?::::|```\{|\.\. auto)", text, re.MULTILINE)
    for name in gx.__all__:
        if not inspect.ismodule(getattr(gx, name)):
            assert f"### gx.{name}" in text, name
    for page in listed:
        source = (ROOT / "docs" / page).with_suffix(".md").read_text()
        assert page.startswith("numbers/") or re.search(r"^# .+\n", source, re.MULTILINE)[0] in text, page


def test_the_citation_names_this_version() -> None:
    assert f"\nversion: {gx.__version__}\n" in (ROOT / "CITATION.cff").read_text()


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_links_of_the_pages_beside_the_site(page: str) -> None:
    links = re.findall(r"\]\(([^)#\s]+)", (ROOT / page).read_text())
    assert links
    for link in links:
        assert urlsplit(link).scheme in OUTSIDE or (ROOT / link).exists(), link
