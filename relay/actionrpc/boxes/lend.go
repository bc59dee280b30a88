// SPDX-License-Identifier: Apache-2.0

package boxes

import (
	"context"
	"slices"
	"strings"

	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/relay/actionrpc/model"
	"github.com/boxd-dev/boxd/supervisor"
	"github.com/boxd-dev/boxd/supervisor/activation"
	"github.com/boxd-dev/boxd/supervisor/policy"
)

// link makes links to skills where LangBot wants them, as the user of the box: pairs of what a link leads to, and where
// it is. A directory that LangBot's own runtime has left there, for its mounts, gives way if it is empty.
const link = `while [ $# -gt 1 ]; do
  if [ ! -L "$2" ] || [ ! "$1" -ef "$2" ] && [ "$(readlink -- "$2")" != "$1" ]; then
    mkdir -p -- "${2%/*}" && { [ -L "$2" ] || [ ! -d "$2" ] || rmdir -- "$2"; } && ln -sfn -- "$1" "$2" || bad=1
  fi
  shift 2
done
exit ${bad:-0}`

// lend gives a session the skills of a spec, each as it is now, and takes away those it has of earlier ones. LangBot
// wants them in /workspace, which is the user's: so that is where links are, to where no program of the box can put
// anything else. What is not there is named in the log and in the session, and never fails it.
func (b *Boxes) lend(ctx context.Context, s *supervisor.Session, spec *model.Spec) error {
	var names, links []string
	for i, k := range spec.Skills {
		if len(names) == policy.MaxSkills {
			b.Log.Warn("a session has no more skills than it can have", "session", s.ID, "has", len(names), "passed_over", len(spec.Skills)-i)
			break
		}
		if !slices.Contains(names, k.Name) {
			names = append(names, k.Name)
		}
		if isolation.UnderRoots(k.At) && !slices.Contains(isolation.Roots(), k.At) {
			links = append(links, activation.Target(k.Name), k.At)
		} else {
			b.Log.Warn("a skill is not where LangBot wants it, but at its own place", "session", s.ID, "skill", k.Name, "wanted", k.At)
		}
	}
	changed, err := b.Sup.Skills.Have(ctx, s, spec.SkillsOf, names)
	if err != nil || len(links) == 0 {
		return err
	}
	// Also where nothing has changed: programs of the box remove links, and LangBot wants a skill elsewhere.
	r, err := b.Sup.Exec(ctx, s, &supervisor.ExecRequest{Argv: append([]string{"/bin/sh", "-c", link, "sh"}, links...), Dir: isolation.Home})
	if err == nil && (r.Status != supervisor.StatusExited || r.ExitCode != 0) {
		b.Log.Warn("skills are not where LangBot wants them, but at their own place", "session", s.ID, "skills", names, "because", strings.TrimSpace(string(r.Streams[1].Data)))
	}
	if err != nil && !changed {
		b.Log.Warn("skills are where they were", "session", s.ID, "skills", names, "error", err)
		return nil
	}
	return err
}

// inSkill is a directory of the box as one of a skill's own, if LangBot means one.
func inSkill(spec *model.Spec, dir string) string {
	for _, k := range spec.Skills {
		if rest, ok := strings.CutPrefix(dir+"/", k.At+"/"); ok {
			return strings.TrimSuffix(activation.Target(k.Name)+"/"+rest, "/")
		}
	}
	return dir
}
