// SPDX-License-Identifier: Apache-2.0

package actionrpc

import (
	"context"
	"slices"
	"strings"

	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/supervisor"
	"github.com/boxd-dev/boxd/supervisor/policy"
	"github.com/boxd-dev/boxd/supervisor/session"
)

// put installs skills where LangBot wants them, as the user of the box: for each its mode, its source, and its target. A
// writable skill is copied, as LangBot mounts it at the target and tells models to work there: files that programs have
// written stay when the skill changes in the store, all others are updated. A stamp file beside the copies names the
// tree of each; whatever is newer than that file was written by programs. A read-only skill is a link. A skill that is
// not wanted any more is removed, unless something was written to it. put prints where it has failed.
//
// An empty directory that LangBot's own runtime left there for its mounts is replaced; any other is kept.
const put = `free() { [ ! -L "$1" ] || rm -f -- "$1"; [ ! -e "$1" ] || rmdir -- "$1" 2>/dev/null; }
fresh() { # FROM AT STAMP TREE
  mkdir -p -- "${3%/*}" && rm -rf -- "$3.new" && cp -R -- "$1" "$3.new" && chmod -R u+w -- "$3.new" && mv -- "$3.new" "$2" && printf '%s' "$4" >"$3"
}
refresh() {
  from=$1 at=$2 stamp=$3
  export from at stamp
  cd -- "$from" && find . -type d -exec sh -c 'cd -- "$at" && mkdir -p -- "$@"' sh {} + &&
    find . -type f -exec sh -c 'for f; do [ "$at/$f" -nt "$stamp" ] || { cp -- "$f" "$at/$f" && chmod u+w -- "$at/$f" && touch -r "$stamp" -- "$at/$f"; } || exit 1; done' sh {} + &&
    cd -- "$at" && find . -type f ! -newer "$stamp" -exec sh -c 'for f; do [ -e "$from/$f" ] || rm -f -- "$f"; done' sh {} + &&
    touch -r "$stamp" -- "$stamp.new" && printf '%s' "$4" >"$stamp" && touch -r "$stamp.new" -- "$stamp" && rm -f -- "$stamp.new"
}
one() { # MODE FROM AT TREE
  stamp=${3%/*}/.boxd/${3##*/}
  if [ "$1" = ro ]; then
    [ -L "$3" ] && [ "$(readlink -- "$3")" = "$2" ] && return 0
    if [ -d "$3" ] && [ ! -L "$3" ] && [ -f "$stamp" ] && [ -z "$(find "$3" -newer "$stamp")" ]; then rm -rf -- "$3" "$stamp"; fi
    mkdir -p -- "${3%/*}" && free "$3" && ln -s -- "$2" "$3"
    return
  fi
  if free "$3"; then fresh "$2" "$3" "$stamp" "$4"; return; fi
  [ -f "$stamp" ] || return 1
  [ "$(cat -- "$stamp")" = "$4" ] || (refresh "$2" "$3" "$stamp" "$4")
}
wanted=/
while [ $# -gt 3 ]; do
  one "$1" "$2" "$3" "$4" || printf '%s\0' "$3"
  wanted=$wanted$3/
  shift 4
done
for stamp in /workspace/.skills/.boxd/*; do
  at=/workspace/.skills/${stamp##*/}
  case $wanted in */"$at"/*) continue;; esac
  [ -f "$stamp" ] && [ -z "$(find "$at" -newer "$stamp" 2>/dev/null)" ] && rm -rf -- "$at" "$stamp"
done
exit 0`

// mountSkills gives a session the skills of a spec in their current version, and removes those of earlier specs. They
// are mounted where no program of the box can replace them, and put from there to where LangBot wants them, in
// /workspace, which is the user's. A missing skill is named in the log and in the session, and never fails the call.
func (b *Boxes) mountSkills(ctx context.Context, s *session.Session, spec *boxSpec) error {
	var names []string
	for i, k := range spec.Skills {
		if len(names) == policy.MaxSkills {
			b.Log.Warn("a session has too many skills; some are left out", "session", s.ID, "has", len(names), "passed_over", len(spec.Skills)-i)
			break
		}
		if !slices.Contains(names, k.Name) {
			names = append(names, k.Name)
		}
		if !isolation.UnderRoots(k.At) || slices.Contains(isolation.Roots(), k.At) {
			spec.Skills[i].Elsewhere = true
			b.Log.Warn("a skill is not at the path LangBot asks for, but at its usual path", "session", s.ID, "skill", k.Name, "wanted", k.At)
		}
	}
	changed, err := b.Sup.Attachments.SetSkills(ctx, s, spec.SkillsOf, names)
	if err != nil {
		return err
	}
	var wanted []string
	for _, k := range spec.Skills {
		i := slices.IndexFunc(s.Skills(), func(has policy.ActiveSkill) bool { return has.Name == k.Name && !has.Missing })
		if i < 0 || k.Elsewhere {
			continue
		}
		mode := policy.MountReadWrite
		if k.ReadOnly {
			mode = policy.MountReadOnly
		}
		wanted = append(wanted, mode, supervisor.SkillTarget(k.Name), k.At, s.Skills()[i].Tree)
	}
	if len(wanted) == 0 && !changed {
		return nil
	}
	// Also if nothing has changed: programs of the box may remove it, and LangBot may want it elsewhere.
	r, err := s.Exec(ctx, &session.ExecRequest{Argv: append([]string{"/bin/sh", "-c", put, "sh"}, wanted...), Dir: s.Home()})
	if err == nil {
		failed := strings.Split(string(r.Streams[0].Data), "\x00")
		all := r.Status != session.StatusExited || r.ExitCode != 0
		for i := range spec.Skills {
			spec.Skills[i].Elsewhere = spec.Skills[i].Elsewhere || all || slices.Contains(failed, spec.Skills[i].At)
		}
		if all || len(failed) > 1 {
			b.Log.Warn("skills are not at the paths LangBot asks for, but at their usual paths", "session", s.ID, "skills", names, "because", strings.TrimSpace(string(r.Streams[1].Data)))
		}
	}
	if err != nil && !changed {
		b.Log.Warn("cannot move skills; they stay where they were", "session", s.ID, "skills", names, "error", err)
		return nil
	}
	return err
}

// inSkill maps a directory of the box into the skill's own directory, if the skill could not be put where LangBot wants it.
func inSkill(spec *boxSpec, dir string) string {
	for _, k := range spec.Skills {
		if rest, ok := strings.CutPrefix(dir+"/", k.At+"/"); ok && k.Elsewhere {
			return strings.TrimSuffix(supervisor.SkillTarget(k.Name)+"/"+rest, "/")
		}
	}
	return dir
}
