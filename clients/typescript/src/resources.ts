// SPDX-License-Identifier: Apache-2.0

// What boxd keeps beside sessions.

import type { Client } from "./client.js";
import { segment, withQuery, type Answer, type CallOptions, type Content, type Query } from "./http.js";
import type * as types from "./types.js";

/** Something that boxd keeps by name. */
abstract class Kept {
  protected readonly client: Client;

  /** @internal */
  constructor(client: Client) {
    this.client = client;
  }

  protected asked<T>(path: string, options: CallOptions): Promise<T> {
    return this.client.ask<T>("GET", path, undefined, { safe: true, ...options });
  }

  protected changed<T>(method: string, path: string, body: unknown, options: CallOptions, safe: boolean): Promise<T> {
    return this.client.ask<T>(method, path, body, { safe, waits: true, ...options });
  }

  protected deleted(path: string, options: CallOptions): Promise<void> {
    return this.client.done("DELETE", path, { waits: true, ...options });
  }

  /** Sends an archive, or only a path that says where else to take it from. */
  protected filled<T>(path: string, content: Content | undefined, options: CallOptions): Promise<T> {
    if (content === undefined) {
      return this.changed("POST", path, undefined, options, false);
    }
    return this.client.upload("POST", path, content, "application/octet-stream", options);
  }
}

/** Workspaces with a name, which outlive sessions. */
export class Workspaces extends Kept {
  #path(name: string): string {
    return this.client.owned(`/v1/workspaces/${segment(name)}`);
  }

  /** Those of the caller. */
  async list(options: CallOptions = {}): Promise<types.Workspace[]> {
    return (await this.asked<types.WorkspaceList>(this.client.owned("/v1/workspaces"), options)).workspaces;
  }

  /** One of them, with its usage. */
  get(name: string, options: CallOptions = {}): Promise<types.Workspace> {
    return this.asked(this.#path(name), options);
  }

  /** Makes one. If it is there, that is a ConflictError. */
  create(request: types.WorkspaceRequest, options: CallOptions = {}): Promise<types.Workspace> {
    return this.changed("POST", this.client.owned("/v1/workspaces"), request, options, false);
  }

  /** Changes what it may hold. */
  update(name: string, change: types.WorkspaceChange, options: CallOptions = {}): Promise<types.Workspace> {
    return this.changed("PATCH", this.#path(name), change, options, true);
  }

  /** Removes it. If a session has it, that is a ConflictError. */
  delete(name: string, options: CallOptions = {}): Promise<void> {
    return this.deleted(this.#path(name), options);
  }
}

/** Root filesystems for sessions, which all callers share. */
export class Images extends Kept {
  /** All of them, by name. */
  async list(options: CallOptions = {}): Promise<types.Image[]> {
    return (await this.asked<types.ImageList>("/v1/images", options)).images;
  }

  /** One of them, by its name or digest. */
  get(name: string, options: CallOptions = {}): Promise<types.Image> {
    return this.asked(`/v1/images/${segment(name)}`, options);
  }

  /**
   * Makes one of an archive: an OCI image layout, what docker save writes, or a tar archive of a root directory, which is the form
   * rootfs. The name is by default that in the archive.
   */
  upload(content: Content, options: CallOptions & { name?: string; form?: "auto" | "oci" | "docker" | "rootfs" } = {}): Promise<types.Image> {
    const { name, form, ...call } = options;
    return this.filled(withQuery("/v1/images", [["name", name], ["form", form]]), content, call);
  }

  /** Takes its name, and removes it when no session has it. */
  delete(name: string, options: CallOptions = {}): Promise<void> {
    return this.deleted(`/v1/images/${segment(name)}`, options);
  }

  /** Removes those that no session has, and returns them. */
  async prune(options: CallOptions = {}): Promise<types.Image[]> {
    return (await this.changed<types.ImageList>("POST", "/v1/images/prune", undefined, options, false)).images;
  }
}

/** Where skills come from: an archive, an address, or a directory of a session. */
export interface SkillSource extends CallOptions {
  content?: Content;
  url?: string;
  session?: string;
  path?: string;
  /** where in it to look */
  subdir?: string;
}

/** Which skills are installed. */
export interface SkillImport extends SkillSource {
  /** their paths; default the only one */
  select?: string[];
  /** they may replace others of the same names */
  replace?: boolean;
  /** that the skill must have */
  digest?: string;
}

/** Instructions for agents, with the files that belong to them. */
export class Skills extends Kept {
  #path(name: string, rest = "", query: Query = []): string {
    return this.client.owned(`/v1/skills/${segment(name)}${rest}`, query);
  }

  /** Those of the caller and the built-in ones, without their instructions. */
  async list(options: CallOptions = {}): Promise<types.Skill[]> {
    return (await this.asked<types.SkillList>(this.client.owned("/v1/skills"), options)).skills;
  }

  /** One of them. */
  get(name: string, options: CallOptions = {}): Promise<types.Skill> {
    return this.asked(this.#path(name), options);
  }

  /** Makes one. If it is there, that is a ConflictError. */
  create(request: types.SkillRequest, options: CallOptions = {}): Promise<types.Skill> {
    return this.changed("POST", this.client.owned("/v1/skills"), request, options, false);
  }

  /** Changes its SKILL.md. With if_match it must have that digest. */
  update(name: string, change: types.SkillChange, options: CallOptions = {}): Promise<types.Skill> {
    return this.changed("PATCH", this.#path(name), change, options, change.if_match === undefined);
  }

  /** Removes it. Sessions keep what they have of it. */
  delete(name: string, options: CallOptions = {}): Promise<void> {
    return this.deleted(this.#path(name), options);
  }

  /** What to tell a model about skills: by default about all that there are. */
  index(request: types.SkillIndexRequest = {}, options: CallOptions = {}): Promise<types.SkillIndex> {
    return this.changed("POST", this.client.owned("/v1/skills/index"), request, options, true);
  }

  /** The entries of a directory of it, by name. */
  files(name: string, path?: string, options: CallOptions & { hidden?: boolean; limit?: number } = {}): Promise<types.SkillEntries> {
    const { hidden, limit, ...call } = options;
    return this.asked(this.#path(name, "/files", [["path", path], ["hidden", hidden], ["limit", limit]]), call);
  }

  /** One of its files. */
  readFile(name: string, path: string, options: CallOptions = {}): Promise<types.SkillFile> {
    return this.asked(this.#path(name, "/file", [["path", path]]), options);
  }

  /** Writes one of its files. With if_match the skill must have that digest. */
  writeFile(
    name: string, path: string, content: string | Uint8Array, request: Omit<types.SkillFileWrite, "path" | "content" | "encoding"> = {}, options: CallOptions = {},
  ): Promise<types.Skill> {
    const given = typeof content === "string" ? { content } : { content: Buffer.from(content).toString("base64"), encoding: "base64" };
    return this.changed("PUT", this.#path(name, "/file"), { ...request, path, ...given }, options, request.if_match === undefined);
  }

  /** Removes one of its files or directories. */
  removeFile(name: string, path: string, options: CallOptions & { ifMatch?: string } = {}): Promise<types.Skill> {
    const { ifMatch, ...call } = options;
    return this.changed("DELETE", this.#path(name, "/file", [["path", path], ["if_match", ifMatch]]), undefined, call, false);
  }

  /** What there is to install. Nothing is stored. */
  async preview(from: SkillSource): Promise<types.SkillCandidate[]> {
    return (await this.#import<types.SkillCandidates>("/preview", from)).candidates;
  }

  /** Installs skills. */
  async install(from: SkillImport): Promise<types.Skill[]> {
    return (await this.#import<types.SkillList>("/install", from)).skills;
  }

  #import<T>(rest: string, from: SkillImport): Promise<T> {
    const { content, url, session, path, subdir, select, replace, digest, ...call } = from;
    const query: Query = [
      ["url", url], ["session", session], ["path", path], ["subdir", subdir],
      ["select", select?.length ? select.join(",") : undefined], ["replace", replace], ["digest", digest],
    ];
    return this.filled(this.client.owned("/v1/skills" + rest, query), content, call);
  }
}

/** What a version of a drive is made of: an archive, or a directory of a session. */
export interface DriveFilling extends CallOptions {
  content?: Content;
  session?: string;
  /** of a directory in that session */
  path?: string;
  /** or the output directory of an execution in it */
  outputVersion?: string;
  /** the directory of the drive; default its top */
  into?: string;
  /** the other files of the newest version stay */
  add?: boolean;
  /** the number that the newest version must have; 0 if there must be none */
  ifVersion?: number;
}

/** Directories with versions, which sessions see and cannot change. */
export class Drives extends Kept {
  #path(name: string, rest = "", query: Query = []): string {
    return this.client.owned(`/v1/drives/${segment(name)}${rest}`, query);
  }

  /** Those of the caller. */
  async list(options: CallOptions = {}): Promise<types.Drive[]> {
    return (await this.asked<types.DriveList>(this.client.owned("/v1/drives"), options)).drives;
  }

  /** One of them, with its versions. */
  get(name: string, options: CallOptions = {}): Promise<types.Drive> {
    return this.asked(this.#path(name), options);
  }

  /** Changes which versions are kept, and whether they are to be copied elsewhere. */
  update(name: string, change: types.DriveChange, options: CallOptions = {}): Promise<types.Drive> {
    return this.changed("PATCH", this.#path(name), change, options, true);
  }

  /** Removes a version, by default all and the drive. */
  delete(name: string, options: CallOptions & { version?: number } = {}): Promise<void> {
    const { version, ...call } = options;
    return this.deleted(this.#path(name, "", [["version", version]]), call);
  }

  /** Makes a version, and the drive if it is new: all of it, or nothing. */
  fill(name: string, from: DriveFilling): Promise<types.DriveVersion> {
    const { content, session, path, outputVersion, into, add, ifVersion, ...call } = from;
    const query: Query = [["session", session], ["path", path], ["output_version", outputVersion], ["into", into], ["add", add], ["if_version", ifVersion]];
    return this.filled(this.#path(name, "/versions", query), content, call);
  }

  /** Notes that a version has been copied elsewhere. */
  markPushed(name: string, version: number, options: CallOptions = {}): Promise<types.Drive> {
    return this.changed("POST", this.#path(name, "/pushed"), { version }, options, true);
  }

  /** Some of the files of a version. */
  index(name: string, options: CallOptions & { version?: number; prefix?: string; offset?: number; limit?: number } = {}): Promise<types.DriveIndex> {
    const { version, prefix, offset, limit, ...call } = options;
    return this.asked(this.#path(name, "/index", [["version", version], ["prefix", prefix], ["offset", offset], ["limit", limit]]), call);
  }

  /** What to tell a model about a version, in so many bytes. */
  async text(name: string, options: CallOptions & { version?: number; bytes?: number } = {}): Promise<string> {
    const { version, bytes, ...call } = options;
    return (await this.asked<types.DriveText>(this.#path(name, "/text", [["version", version], ["bytes", bytes]]), call)).text;
  }

  /** A version as a tar archive. */
  download(name: string, options: CallOptions & { version?: number } = {}): Promise<Answer> {
    const { version, ...call } = options;
    return this.client.open(this.#path(name, "/archive", [["version", version]]), call);
  }
}
