# SPDX-License-Identifier: Apache-2.0
#
# Code generated from its sibling _async_resources.py by UPDATE=1 go test ./clients. DO NOT EDIT.

"""What boxd keeps beside sessions, for programs without asyncio."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any, Dict, Iterable, List, Optional, Type, TypeVar, Union

from . import answers, requests
from ._http import Query, segment, with_query

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._client import Client, Download

T = TypeVar("T")

#: what is sent as an archive
Archive = Union[bytes, Iterable[bytes], Iterable[bytes]]

_BINARY = "application/octet-stream"


class _Kept:
    """Something that boxd keeps by name for an owner."""

    _at = ""

    def __init__(self, client: Client) -> None:
        self._client = client

    def _path(self, name: Optional[str] = None, rest: str = "", query: Query = ()) -> str:
        path = self._at if name is None else f"{self._at}/{segment(name)}{rest}"
        return with_query(path, [*query, ("owner", self._client.owner)])

    def _delete(self, path: str) -> None:
        self._client._json("DELETE", path, safe=True, waits=True)


class Workspaces(_Kept):
    """Workspaces with a name, which outlive sessions."""

    _at = "/v1/workspaces"

    def list(self) -> List[answers.Workspace]:
        """Those of the caller."""
        return (self._client._ask(answers.WorkspaceList, "GET", self._path(), safe=True)).workspaces

    def get(self, name: str) -> answers.Workspace:
        """One of them, with its usage."""
        return self._client._ask(answers.Workspace, "GET", self._path(name), safe=True)

    def create(self, name: str, **request: Unpack[requests.WorkspaceChange]) -> answers.Workspace:
        """Makes one. If it is there, that is a Conflict."""
        body: Dict[str, Any] = {**request, "name": name}
        return self._client._ask(answers.Workspace, "POST", self._path(), body, safe=False, waits=True)

    def update(self, name: str, **change: Unpack[requests.WorkspaceChange]) -> answers.Workspace:
        """Changes what it may hold."""
        return self._client._ask(answers.Workspace, "PATCH", self._path(name), change, safe=True, waits=True)

    def delete(self, name: str) -> None:
        """Removes it. If a session has it, that is a Conflict."""
        self._delete(self._path(name))


class Images:
    """Root filesystems for sessions, which all callers share."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def list(self) -> List[answers.Image]:
        """All of them, by name."""
        return (self._client._ask(answers.ImageList, "GET", "/v1/images", safe=True)).images

    def get(self, name: str) -> answers.Image:
        """One of them, by its name or digest."""
        return self._client._ask(answers.Image, "GET", f"/v1/images/{segment(name)}", safe=True)

    def upload(self, content: Archive, name: Optional[str] = None, *, form: Optional[str] = None) -> answers.Image:
        """Makes one of an archive: an OCI image layout, what docker save writes, or a tar archive of a root directory."""
        path = with_query("/v1/images", [("name", name), ("form", form)])
        return self._client._upload(answers.Image, "POST", path, content, _BINARY)

    def delete(self, name: str) -> None:
        """Takes its name, and removes it when no session has it."""
        self._client._json("DELETE", f"/v1/images/{segment(name)}", safe=True, waits=True)

    def prune(self) -> List[answers.Image]:
        """Removes those that no session has, and returns them."""
        return (self._client._ask(answers.ImageList, "POST", "/v1/images/prune", safe=False, waits=True)).images


class Skills(_Kept):
    """Instructions for agents, with the files that belong to them."""

    _at = "/v1/skills"

    def list(self) -> List[answers.Skill]:
        """Those of the caller and the built-in ones, without their instructions."""
        return (self._client._ask(answers.SkillList, "GET", self._path(), safe=True)).skills

    def get(self, name: str) -> answers.Skill:
        """One of them."""
        return self._client._ask(answers.Skill, "GET", self._path(name), safe=True)

    def create(self, name: str, description: str, **request: Unpack[requests.SkillOptions]) -> answers.Skill:
        """Makes one. If it is there, that is a Conflict."""
        body: Dict[str, Any] = {**request, "name": name, "description": description}
        return self._client._ask(answers.Skill, "POST", self._path(), body, safe=False, waits=True)

    def update(self, name: str, **change: Unpack[requests.SkillChange]) -> answers.Skill:
        """Changes its SKILL.md. With if_match it must have that digest."""
        return self._client._ask(answers.Skill, "PATCH", self._path(name), change, safe="if_match" not in change, waits=True)

    def delete(self, name: str) -> None:
        """Removes it. Sessions keep what they have of it."""
        self._delete(self._path(name))

    def index(self, names: Optional[Iterable[str]] = None, *, location: Optional[str] = None) -> answers.SkillIndex:
        """What to tell a model about skills: by default about all that there are."""
        body: Dict[str, Any] = {}
        if names is not None:
            body["names"] = [*names]
        if location is not None:
            body["location"] = location
        path = with_query(self._at + "/index", [("owner", self._client.owner)])
        return self._client._ask(answers.SkillIndex, "POST", path, body, safe=True)

    def files(self, name: str, path: Optional[str] = None, *, hidden: bool = False, limit: Optional[int] = None) -> answers.SkillEntries:
        """The entries of a directory of it, by name."""
        query: Query = [("path", path), ("hidden", hidden), ("limit", limit)]
        return self._client._ask(answers.SkillEntries, "GET", self._path(name, "/files", query), safe=True)

    def read_file(self, name: str, path: str) -> answers.SkillFile:
        """One of its files."""
        return self._client._ask(answers.SkillFile, "GET", self._path(name, "/file", [("path", path)]), safe=True)

    def write_file(
        self, name: str, path: str, content: Union[str, bytes], *, executable: bool = False, if_match: Optional[str] = None
    ) -> answers.Skill:
        """Writes one of its files. With if_match the skill must have that digest."""
        body: Dict[str, Any] = {"path": path, "content": content, "executable": executable}
        if isinstance(content, bytes):
            body.update(content=base64.b64encode(content).decode(), encoding="base64")
        if if_match is not None:
            body["if_match"] = if_match
        return self._client._ask(answers.Skill, "PUT", self._path(name, "/file"), body, safe=if_match is None, waits=True)

    def remove_file(self, name: str, path: str, *, if_match: Optional[str] = None) -> answers.Skill:
        """Removes one of its files or directories."""
        to = self._path(name, "/file", [("path", path), ("if_match", if_match)])
        return self._client._ask(answers.Skill, "DELETE", to, safe=False, waits=True)

    def preview(
        self,
        content: Optional[Archive] = None,
        *,
        url: Optional[str] = None,
        session: Optional[str] = None,
        path: Optional[str] = None,
        subdir: Optional[str] = None,
    ) -> List[answers.SkillCandidate]:
        """What there is to install in an archive, at an address, or in a directory of a session. Nothing is stored."""
        query: Query = [("url", url), ("session", session), ("path", path), ("subdir", subdir)]
        return (self._import(answers.SkillCandidates, "/preview", query, content)).candidates

    def install(
        self,
        content: Optional[Archive] = None,
        *,
        url: Optional[str] = None,
        session: Optional[str] = None,
        path: Optional[str] = None,
        subdir: Optional[str] = None,
        select: Iterable[str] = (),
        replace: bool = False,
        digest: Optional[str] = None,
    ) -> List[answers.Skill]:
        """Installs skills: those of the selected paths, by default the only one. They may replace others of the same names."""
        source = [("url", url), ("session", session), ("path", path), ("subdir", subdir)]
        query: Query = [*source, ("select", ",".join(select) or None), ("replace", replace), ("digest", digest)]
        return (self._import(answers.SkillList, "/install", query, content)).skills

    def _import(self, answer: Type[T], rest: str, query: Query, content: Optional[Archive]) -> T:
        path = with_query(self._at + rest, [*query, ("owner", self._client.owner)])
        if content is None:
            return self._client._ask(answer, "POST", path, safe=False, waits=True)
        return self._client._upload(answer, "POST", path, content, _BINARY)


class Drives(_Kept):
    """Directories with versions, which sessions see and cannot change."""

    _at = "/v1/drives"

    def list(self) -> List[answers.Drive]:
        """Those of the caller."""
        return (self._client._ask(answers.DriveList, "GET", self._path(), safe=True)).drives

    def get(self, name: str) -> answers.Drive:
        """One of them, with its versions."""
        return self._client._ask(answers.Drive, "GET", self._path(name), safe=True)

    def update(self, name: str, **change: Unpack[requests.DriveChange]) -> answers.Drive:
        """Changes which versions are kept, and whether they are to be copied elsewhere."""
        return self._client._ask(answers.Drive, "PATCH", self._path(name), change, safe=True, waits=True)

    def delete(self, name: str, version: Optional[int] = None) -> None:
        """Removes a version, by default all and the drive."""
        self._delete(self._path(name, "", [("version", version)]))

    def fill(
        self,
        name: str,
        content: Optional[Archive] = None,
        *,
        session: Optional[str] = None,
        path: Optional[str] = None,
        output_version: Optional[str] = None,
        into: Optional[str] = None,
        add: bool = False,
        if_version: Optional[int] = None,
    ) -> answers.DriveVersion:
        """Makes a version of an archive, or of a directory of a session, and the drive if it is new: all of it, or nothing.

        With add the other files of the newest version stay. if_version is the number that this must have, 0 if there must be none.
        """
        source = [("session", session), ("path", path), ("output_version", output_version)]
        query: Query = [*source, ("into", into), ("add", add), ("if_version", if_version)]
        to = self._path(name, "/versions", query)
        if content is None:
            return self._client._ask(answers.DriveVersion, "POST", to, safe=False, waits=True)
        return self._client._upload(answers.DriveVersion, "POST", to, content, _BINARY)

    def mark_pushed(self, name: str, version: int) -> answers.Drive:
        """Notes that a version has been copied elsewhere."""
        return self._client._ask(answers.Drive, "POST", self._path(name, "/pushed"), {"version": version}, safe=True, waits=True)

    def index(
        self, name: str, *, version: Optional[int] = None, prefix: Optional[str] = None, offset: Optional[int] = None, limit: Optional[int] = None
    ) -> answers.DriveIndex:
        """Some of the files of a version."""
        query: Query = [("version", version), ("prefix", prefix), ("offset", offset), ("limit", limit)]
        return self._client._ask(answers.DriveIndex, "GET", self._path(name, "/index", query), safe=True)

    def text(self, name: str, *, version: Optional[int] = None, bytes: Optional[int] = None) -> str:
        """What to tell a model about a version, in so many bytes."""
        query: Query = [("version", version), ("bytes", bytes)]
        return (self._client._ask(answers.DriveText, "GET", self._path(name, "/text", query), safe=True)).text

    def download(self, name: str, version: Optional[int] = None) -> Download:
        """A version as a tar archive."""
        return self._client._download(self._path(name, "/archive", [("version", version)]))
