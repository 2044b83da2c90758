"""Every link of the built site leads to a page, a file and a place in it that are there, and nothing is fetched from elsewhere."""

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

FETCHED = {"img": "src", "script": "src", "source": "src", "iframe": "src", "link": "href"}


class Page(HTMLParser):
    """The places of a page, its links, and what a browser fetches to show it."""

    def __init__(self, file: Path):
        super().__init__()
        self.places: set[str] = {"", "top"}
        self.links: list[str] = []
        self.fetched: list[str] = []
        self.feed(file.read_text("utf-8"))

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.places |= {given[key] for key in ("id", "name") if given.get(key)}
        if tag == "a" and given.get("href"):
            self.links.append(given["href"])
        if given.get(FETCHED.get(tag, "")) and given.get("rel") not in ("canonical", "author"):
            self.fetched.append(given[FETCHED[tag]])


def wrong(site: Path) -> list[str]:
    """Links that lead nowhere, page by page."""
    files = [file for file in site.resolve().rglob("*.html") if "_static" not in file.parts]
    pages = {file: Page(file) for file in files}
    found = []
    for file, page in pages.items():
        for link in page.links + page.fetched:
            to = urlsplit(link)
            if to.scheme or to.netloc:
                if link in page.fetched and to.scheme != "data":
                    found.append(f"{file.relative_to(site.resolve())} fetches {link}")
                continue
            target = (file.parent / unquote(to.path)).resolve() if to.path else file
            place = unquote(to.fragment)
            if not target.exists() or (target in pages and place not in pages[target].places):
                found.append(f"{file.relative_to(site.resolve())} → {link}")
    print(f"{sum(len(page.links) for page in pages.values())} links of {len(pages)} pages.")
    return found


if __name__ == "__main__":
    missing = wrong(Path(sys.argv[1]))
    print(*missing, sep="\n", end="\n" if missing else "")
    sys.exit(bool(missing))
