#!/bin/bash
# Builds the documents as a site. Their links are relative within the repository, so the script copies them with its
# layout. mdBook needs SUMMARY.md at the top of its sources; the script makes it from docs/SUMMARY.md.
# usage: docs.sh MDBOOK DIRECTORY
set -euo pipefail
mdbook=$1
book=$2
cd "$(dirname "$0")/.."

rm -rf "$book"
mkdir -p "$book/src/clients"
cp docs/book.toml "$book/"
cp ./*.md LICENSE "$book/src/"
cp -r docs formats rfcs "$book/src/"
cp clients/README.md "$book/src/clients/"
rm "$book/src/docs/SUMMARY.md" "$book/src/docs/book.toml"
# Links from docs/ become links from the top.
sed -E -e 's#\]\(([^)./])#](docs/\1#' -e 's#\]\(\.\./#](#' docs/SUMMARY.md >"$book/src/SUMMARY.md"

# mdBook reads only pages that are listed.
missing=0
while read -r page; do
  if ! grep -qF "]($page)" "$book/src/SUMMARY.md"; then
    echo "docs/SUMMARY.md does not list $page" >&2
    missing=1
  fi
done < <(cd "$book/src" && find docs formats rfcs -name '*.md' | sort)
if [ "$missing" = 1 ]; then
  exit 1
fi

"$mdbook" build "$book"

# A link to a page or file that is not in the site.
broken=0
while IFS=: read -r page target; do
  if [ "$target" != https ] && [ "$target" != http ] && [ ! -e "$(dirname "$page")/$target" ]; then
    echo "$page: broken link to $target" >&2
    broken=1
  fi
done < <(cd "$book/site" && find . -name '*.html' ! -name print.html ! -name toc.html -exec grep -oHE 'href="[^"#:?]+' {} + |
  sed 's/href="//' | sort -u | sed "s#^\./#$book/site/#")
if [ "$broken" = 1 ]; then
  exit 1
fi
echo "The site: $book/site/index.html"
