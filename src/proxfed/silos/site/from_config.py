"""The holder of a site, and the files of its rows, as its site.toml says."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from proxfed.silos.protection.site_guard import SiteGuard
from proxfed.silos.site.config import Site
from proxfed.silos.site.holder import Holder
from proxfed.silos.site.rows import Rows
from proxfed.silos.site.table_rows import TableRows
from proxfed.tables.raw import find_files
from proxfed.tables.schema import read_schema


def holder(site: Site) -> Holder:
    """The holder of a site, with its guard; it reads the rows when they are first needed."""
    return Holder(site.name, SiteFiles(site), site.path(site.files.state), SiteGuard(site))


@dataclass(frozen=True)
class SiteFiles:
    """The rows of a site, read only from the files that site.toml names."""

    site: Site

    def read(self) -> Rows:
        data = self.site.data
        if data.schema_file:
            return TableRows.read_table(self.site.path(data.schema_file), self.site.name, data.organisation)
        test = None if data.test is None else self.site.path(data.test)
        more = {"classes": data.classes, "test": test, "held_out": data.held_out}
        return Rows.read(self.site.path(data.path), data.label, data.client, **more)

    def stamp(self) -> object:
        return [(str(path), found.st_ino, found.st_mtime_ns, found.st_size) for path in self._files()
                if (found := path.stat())]  # fmt: skip

    def _files(self) -> list[Path]:
        data = self.site.data
        if not data.schema_file:
            return [self.site.path(name) for name in (data.path, data.test) if name]
        schema = self.site.path(data.schema_file)
        source = read_schema(schema).source
        joins = [source.model_copy(update={"files": join.file}) for join in source.join]
        return [schema, *(path for of in (source, *joins) for path in find_files(of, schema.parent).values())]
