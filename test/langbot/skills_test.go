// SPDX-License-Identifier: Apache-2.0

package langbot_test

import (
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/relay/actionrpc/wire"
	"github.com/boxd-dev/boxd/supervisor/policy"
)

// skillRoot returns the path that LangBot is given for the skills of a Workspace.
func skillRoot(workspace string) string {
	return "/run/boxd/langbot-skills/tenants/" + wire.Namespace(instance, workspace)
}

// skills returns the names in box_list_skills.
func (c *rpc) skills() (names []string) {
	c.t.Helper()
	var list struct{ Skills []struct{ Name string } }
	c.gets("box_list_skills", "{}", &list)
	for _, k := range list.Skills {
		names = append(names, k.Name)
	}
	return names
}

// upload sends an archive of files as the real client does, and returns its key.
func (c *rpc) upload(files map[string]string) string {
	c.t.Helper()
	return c.pieces(boxtest.Zip(files))
}

func (c *rpc) pieces(data []byte) string {
	c.t.Helper()
	const piece = 16384
	amount := max((len(data)+piece-1)/piece, 1)
	for i := range amount {
		c.gets("__file_chunk", fmt.Sprintf(`{"file_key":"up.zip","file_length":%d,"chunk_index":%d,"chunk_amount":%d,"chunk_size":%d,"chunk_base64":%q}`,
			len(data), i, amount, piece, base64.StdEncoding.EncodeToString(data[i*piece:min((i+1)*piece, len(data))])), nil)
	}
	return "up.zip"
}

func document(name string) string {
	return "---\nname: " + name + "\ndescription: What " + name + " does.\nlicense: MIT\n---\n\n# " + name + "\n"
}

func TestSkillsOfAWorkspaceAreItsOwn(t *testing.T) {
	t.Parallel()
	b := start(t)
	c := b.dial(t)
	if names := c.skills(); len(names) != 0 {
		t.Errorf("%q before there are any", names)
	}
	var made struct{ Skill map[string]any }
	c.gets("box_create_skill", `{"skill":{"name":" Größe_1 ","display_name":"Größe","description":"Was.","instructions":"Do it.","package_root":""}}`, &made)
	k := maps.Clone(made.Skill)
	want := []string{"created_at", "description", "display_name", "entry_file", "instructions", "name", "package_root", "python_project", "updated_at"}
	if !slices.Equal(slices.Sorted(maps.Keys(k)), want) || k["name"] != "Größe_1" || k["display_name"] != "Größe" || k["description"] != "Was." || k["instructions"] != "Do it." ||
		k["package_root"] != skillRoot(workspace)+"/Größe_1" || k["entry_file"] != "SKILL.md" || k["python_project"] != false || !strings.HasSuffix(fmt.Sprint(k["created_at"]), "+00:00") {
		t.Errorf("k = %v", k)
	}
	c.gets("box_create_skill", `{"skill":{"name":"plain"}}`, &made)
	if made.Skill["display_name"] != "plain" || made.Skill["description"] != "" {
		t.Errorf(`made.Skill = %v, want made.Skill["display_name"] == "plain" and made.Skill["description"] == ""`,
			made.Skill)
	}
	if names := c.skills(); !slices.Equal(names, []string{"plain", "Größe_1"}) {
		t.Errorf(`names = %q, want []string{"plain", "Größe_1"}`, names)
	}
	c.gets("box_update_skill", fmt.Sprintf(`{"name":"Größe_1","skill":{"name":"Größe_1","description":"Anderes.","package_root":%q}}`, k["package_root"]), &made)
	if made.Skill["description"] != "Anderes." || made.Skill["display_name"] != "Größe" || made.Skill["instructions"] != "Do it." || made.Skill["package_root"] != k["package_root"] {
		t.Errorf("made.Skill = %v", made.Skill)
	}
	// Another Workspace has none of them; a later generation of the same one has them all, under the next boxd too.
	other := b.dial(t)
	other.workspace = "w2"
	other.gets("box_get_skill", `{"name":"plain"}`, &made)
	if names := other.skills(); len(names) != 0 || made.Skill != nil {
		t.Errorf("names = %q, made.Skill = %v, want len(names) == 0 and made.Skill == nil", names, made.Skill)
	}
	other.refused("box_delete_skill", `{"name":"plain"}`, `BoxValidationError: Skill "plain" not found`)
	other.refused("box_read_skill_file", `{"name":"plain","path":"SKILL.md"}`, `BoxValidationError: Skill "plain" not found`)
	b.Stop()
	b.Restart()
	c = b.dial(t)
	c.generation = 7
	if names := c.skills(); !slices.Equal(names, []string{"Größe_1", "plain"}) {
		t.Errorf(`names = %q, want []string{"Größe_1", "plain"}`, names)
	}
	var gone map[string]any
	c.gets("box_delete_skill", `{"name":"plain"}`, &gone)
	if names := c.skills(); gone["deleted"] != "plain" || !slices.Equal(names, []string{"Größe_1"}) {
		t.Errorf(`gone = %v, names = %q, want gone["deleted"] == "plain" and names == []string{"Größe_1"}`,
			gone, names)
	}
	c.gets("box_get_skill", `{"name":"create-skill"}`, &made)
	if made.Skill != nil {
		t.Errorf("a skill of boxd's: made.Skill = %v, want nil", made.Skill)
	}
}

func TestFilesOfASkillAreReadWrittenAndListed(t *testing.T) {
	t.Parallel()
	c := start(t).dial(t)
	c.gets("box_create_skill", `{"skill":{"name":"s","instructions":"x"}}`, nil)
	var wrote map[string]any
	c.gets("box_write_skill_file", `{"name":"s","path":"a/./b.txt","content":"für"}`, &wrote)
	if fmt.Sprint(wrote) != "map[bytes_written:4 path:a/b.txt skill:map[name:s]]" {
		t.Errorf(`wrote = %v, want fmt.Sprint(wrote) == "map[bytes_written:4 path:a/b.txt skill:map[name:s]]"`, wrote)
	}
	c.gets("box_write_skill_file", `{"name":"s","path":".hidden"}`, nil)
	for data, want := range map[string]string{
		`{"name":"s"}`:                       "map[base_path:. entries:[map[is_dir:false name:SKILL.md path:SKILL.md size:18] map[is_dir:true name:a path:a size:<nil>]] skill:map[name:s] truncated:false]",
		`{"name":"s","max_entries":1}`:       "map[base_path:. entries:[map[is_dir:false name:SKILL.md path:SKILL.md size:18]] skill:map[name:s] truncated:true]",
		`{"name":"s","path":"a"}`:            "map[base_path:a entries:[map[is_dir:false name:b.txt path:a/b.txt size:4]] skill:map[name:s] truncated:false]",
		`{"name":"s","include_hidden":true}`: "map[base_path:. entries:[map[is_dir:false name:.hidden path:.hidden size:0] map[is_dir:false name:SKILL.md path:SKILL.md size:18] map[is_dir:true name:a path:a size:<nil>]] skill:map[name:s] truncated:false]",
	} {
		var list map[string]any
		c.gets("box_list_skill_files", data, &list)
		if fmt.Sprint(list) != want {
			t.Errorf("%s: list = %v, want fmt.Sprint(list) == want", data, list)
		}
	}
	var read map[string]any
	c.gets("box_read_skill_file", `{"name":"s","path":"SKILL.md"}`, &read)
	if fmt.Sprint(read) != "map[content:---\nname: s\n---\n\nx path:SKILL.md skill:map[name:s]]" {
		t.Errorf(`read = %v, want fmt.Sprint(read) == "map[content:---\nname: s\n---\n\nx path:SKILL.md skill:map[name:s]]"`,
			read)
	}
	// Front matter that the client does not know is kept.
	c.gets("box_write_skill_file", fmt.Sprintf(`{"name":"s","path":"SKILL.md","content":%q}`, document("s")), nil)
	c.gets("box_update_skill", `{"name":"s","skill":{"instructions":"y"}}`, nil)
	c.gets("box_read_skill_file", `{"name":"s","path":"SKILL.md"}`, &read)
	if read["content"] != "---\nname: s\ndescription: What s does.\nlicense: MIT\n---\n\ny" {
		t.Errorf(`read["content"] = %q, want "---\nname: s\ndescription: What s does.\nlicense: MIT\n---\n\ny"`,
			read["content"])
	}
	large := strings.Repeat("x", 1<<20+1)
	for _, tc := range []struct{ action, data, want string }{
		{"box_create_skill", `{}`, "'skill'"},
		{"box_create_skill", `{"skill":{}}`, "'name'"},
		{"box_create_skill", `{"skill":{"name":" "}}`, "Skill name is required"},
		{"box_create_skill", `{"skill":{"name":"a b"}}`, "Skill name can only contain letters, numbers, hyphens and underscores"},
		{"box_create_skill", `{"skill":{"name":"-_"}}`, "Skill name can only contain letters, numbers, hyphens and underscores"},
		{"box_create_skill", `{"skill":{"name":"` + strings.Repeat("x", 65) + `"}}`, "Skill name cannot exceed 64 characters"},
		{"box_create_skill", `{"skill":{"name":"s"}}`, `Skill with name "s" already exists`},
		{"box_create_skill", `{"skill":{"name":"t","package_root":"/srv/t"}}`, "package_root must stay within the Workspace skill root"},
		{"box_create_skill", `{"skill":{"name":"t","package_root":"` + skillRoot("w2") + `/t"}}`, "package_root must stay within the Workspace skill root"},
		{"box_create_skill", `{"skill":{"name":"t","package_root":"` + skillRoot(workspace) + `/t"}}`, "Directory does not exist: " + skillRoot(workspace) + "/t"},
		{"box_update_skill", `{"name":"t","skill":{}}`, `Skill "t" not found`},
		{"box_update_skill", `{"name":"s","skill":{"name":"t"}}`, "Renaming skills is not supported"},
		{"box_update_skill", `{"name":"s","skill":{"package_root":"/x"}}`, "Updating package_root is not supported; recreate the skill to import a different package"},
		{"box_update_skill", `{"name":"s"}`, "'skill'"},
		{"box_delete_skill", `{}`, "'name'"},
		{"box_delete_skill", `{"name":"create-skill"}`, `Skill "create-skill" not found`},
		{"box_list_skill_files", `{"name":"s","path":"none"}`, "Skill directory not found: none"},
		{"box_list_skill_files", `{"name":"s","max_entries":0}`, "max_entries must be a positive integer"},
		{"box_read_skill_file", `{"name":"s"}`, "'path'"},
		{"box_read_skill_file", `{"name":"s","path":"none"}`, "Skill file not found: none"},
		{"box_read_skill_file", `{"name":"s","path":"a"}`, "Skill file not found: a"},
		{"box_read_skill_file", `{"name":"s","path":"/etc/passwd"}`, "path must be relative to the skill package root"},
		{"box_read_skill_file", `{"name":"s","path":"../../x"}`, "path must stay within the skill package root"},
		{"box_write_skill_file", `{"name":"s","path":"../x"}`, "path must stay within the skill package root"},
		{"box_write_skill_file", `{"name":"s","path":"x","content":"` + large + `"}`, "Skill file x exceeds the 1048576-byte limit"},
		{"box_scan_skill_directory", `{"path":"/srv"}`, "scan path must stay within the Workspace skill root"},
	} {
		c.refused(tc.action, tc.data, "BoxValidationError: "+tc.want)
	}
	c.refused("box_get_skill", `{}`, "KeyError: 'name'")
	var scanned map[string]any
	c.gets("box_scan_skill_directory", fmt.Sprintf(`{"path":%q}`, skillRoot(workspace)), &scanned)
	if scanned["name"] != "s" || scanned["package_root"] != skillRoot(workspace)+"/s" {
		t.Errorf(`scanned = %v, want scanned["name"] == "s" and scanned["package_root"] == skillRoot(workspace) + "/s"`,
			scanned)
	}
}

func TestSkillsComeInArchives(t *testing.T) {
	t.Parallel()
	c := start(t).dial(t)
	both := map[string]string{"top/a/SKILL.md": document("a"), "top/a/requirements.txt": "", "top/b/c/skill.md": "no front matter"}
	var found struct{ Skills []map[string]any }
	c.gets("box_preview_skill_zip", fmt.Sprintf(`{"file_key":%q}`, c.upload(both)), &found)
	if len(found.Skills) != 2 || found.Skills[0]["source_path"] != "a" || found.Skills[1]["source_path"] != "b/c" || found.Skills[0]["python_project"] != true ||
		found.Skills[1]["name"] != "c" || found.Skills[1]["entry_file"] != "skill.md" || found.Skills[0]["package_root"] != skillRoot(workspace)+"/skill-a-upload" {
		t.Errorf("found.Skills = %v", found.Skills)
	}
	install := func(more string, files map[string]string) string {
		return fmt.Sprintf(`{"file_key":%q,"filename":"my skill.zip","target_suffix":"upload"%s}`, c.upload(files), more)
	}
	c.refused("box_install_skill_zip", install("", both), "BoxValidationError: Multiple skills found. Please choose one or more source_paths: a, b/c")
	c.refused("box_install_skill_zip", install(`,"source_paths":["x"]`, both), `BoxValidationError: Invalid source_path "x". Available: a, b/c`)
	if names := c.skills(); len(names) != 0 {
		t.Errorf("names = %q, want len(names) == 0", names)
	}
	c.gets("box_install_skill_zip", install(`,"source_paths":["/a/"],"source_path":"b/c"`, both), &found)
	if names := c.skills(); len(found.Skills) != 2 || len(names) != 2 {
		t.Errorf("found.Skills = %v, names = %q, want len(found.Skills) == 2 and len(names) == 2", found.Skills, names)
	}
	one := map[string]string{"SKILL.md": "Do."}
	c.gets("box_install_skill_zip", install("", one), &found)
	if len(found.Skills) != 1 || found.Skills[0]["name"] != "my-skill-upload" || found.Skills[0]["instructions"] != "Do." {
		t.Errorf(`found.Skills = %v, want len(found.Skills) == 1 and found.Skills[0]["name"] == "my-skill-upload" and found.Skills[0]["instructions"] == "Do."`,
			found.Skills)
	}
	c.refused("box_install_skill_zip", install("", one), "BoxValidationError: Skill directory already exists: "+skillRoot(workspace)+"/my-skill-upload")
	c.refused("box_install_skill_zip", install(`,"source_subdir":"../x"`, one), "BoxValidationError: source_subdir must stay within the uploaded archive")
	c.refused("box_install_skill_zip", install(`,"source_subdir":"x"`, one), "BoxValidationError: source_subdir does not exist in the uploaded archive: x")
	c.refused("box_install_skill_zip", install("", map[string]string{"README": ""}), "BoxValidationError: No SKILL.md found in …")
	c.refused("box_install_skill_zip", install("", map[string]string{"../SKILL.md": ""}), "BoxValidationError: Archive contains an unsafe path: ../SKILL.md")
	for text, want := range map[string]string{"": "Uploaded file is empty", "x": "Uploaded file must be a valid .zip archive", "PKx": "Uploaded file must be a valid .zip archive"} {
		c.refused("box_preview_skill_zip", fmt.Sprintf(`{"file_key":%q}`, c.pieces([]byte(text))), "BoxValidationError: "+want)
	}
	c.refused("box_preview_skill_zip", `{}`, "BoxValidationError: 'file_key'")
}

// Skills of two archives may have one name, as LangBot's own runtime has a directory for each: both are listed and mounted, and the
// name refers to the newest.
func TestArchivesMayHaveSkillsOfOneName(t *testing.T) {
	t.Parallel()
	b := start(t, boxtest.Kept)
	c := b.dial(t)
	root := skillRoot(workspace)
	install := func(filename, more string, files map[string]string) string {
		return fmt.Sprintf(`{"file_key":%q,"filename":%q%s}`, c.upload(files), filename, more)
	}
	is := func(body string) map[string]string {
		return map[string]string{"SKILL.md": "---\nname: x\n---\n\n" + body, "body": body}
	}
	lists := func(want ...string) {
		t.Helper()
		var found struct{ Skills []map[string]any }
		c.gets("box_list_skills", `{}`, &found)
		var got []string
		for _, k := range found.Skills {
			got = append(got, fmt.Sprint(k["name"], " ", strings.TrimPrefix(fmt.Sprint(k["package_root"]), root+"/")))
		}
		if !slices.Equal(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
	}
	reads := func(want string) {
		t.Helper()
		var got struct {
			Skill   map[string]any
			Content string
		}
		c.gets("box_read_skill_file", `{"name":"x","path":"body"}`, &got)
		if got.Content != want || got.Skill["name"] != "x" {
			t.Errorf("%+v, want %q", got, want)
		}
	}
	c.gets("box_install_skill_zip", install("first.zip", "", is("first")), nil)
	var found struct{ Skills []map[string]any }
	c.gets("box_preview_skill_zip", install("second one.zip", "", is("second")), &found)
	if len(found.Skills) != 1 || found.Skills[0]["name"] != "x" || found.Skills[0]["package_root"] != root+"/second-one-upload" {
		t.Errorf(`found.Skills = %v, want len(found.Skills) == 1 and found.Skills[0]["name"] == "x" and found.Skills[0]["package_root"] == root + "/second-one-upload"`,
			found.Skills)
	}
	c.gets("box_install_skill_zip", install("second one.zip", "", is("second")), &found)
	if len(found.Skills) != 1 || found.Skills[0]["name"] != "x" || found.Skills[0]["package_root"] != root+"/second-one-upload" || found.Skills[0]["instructions"] != "second" {
		t.Errorf("found.Skills = %v", found.Skills)
	}
	lists("x second-one-upload", "x first-upload")
	reads("second")
	c.refused("box_install_skill_zip", install("first.zip", "", is("third")), "BoxValidationError: Skill directory already exists: "+root+"/first-upload")
	c.refused("box_create_skill", `{"skill":{"name":"x","instructions":"more"}}`, `BoxValidationError: Skill with name "x" already exists`)
	c.refused("box_create_skill", `{"skill":{"name":"first-upload","instructions":"more"}}`, "BoxValidationError: Skill directory already exists: "+root+"/first-upload")
	twins := map[string]string{"a/SKILL.md": is("a")["SKILL.md"], "b/SKILL.md": is("b")["SKILL.md"], "c/a/SKILL.md": is("c")["SKILL.md"]}
	c.refused("box_install_skill_zip", install("pack.zip", `,"source_paths":["a","c/a"]`, twins), "BoxValidationError: Duplicate target directory selected: "+root+"/pack-a-upload")
	c.gets("box_install_skill_zip", install("pack.zip", `,"source_paths":["a","b"],"target_suffix":""`, twins), nil)
	for range 2 {
		c.gets("box_delete_skill", `{"name":"x"}`, nil)
	}
	lists("x second-one-upload", "x first-upload")
	// A session gets the skill that LangBot mounts, by its directory.
	both := fmt.Sprintf(`"extra_mounts":[{"host_path":%q,"mount_path":"/workspace/.skills/x","mode":"rw"},{"host_path":%q,"mount_path":"/workspace/.skills/y","mode":"rw"}]`,
		root+"/first-upload", root+"/second-one-upload")
	c.says(both, "cat .skills/x/body .skills/y/body", "firstsecond")
	// A change applies to the newest, which keeps its name.
	var made struct{ Skill map[string]any }
	c.gets("box_update_skill", fmt.Sprintf(`{"name":"x","skill":{"description":"Changed.","package_root":%q}}`, root+"/second-one-upload"), &made)
	c.gets("box_write_skill_file", `{"name":"x","path":"body","content":"changed"}`, nil)
	if made.Skill["name"] != "x" || made.Skill["package_root"] != root+"/second-one-upload" || made.Skill["instructions"] != "second" {
		t.Errorf(`made.Skill = %v, want made.Skill["name"] == "x" and made.Skill["package_root"] == root + "/second-one-upload" and made.Skill["instructions"] == "second"`,
			made.Skill)
	}
	c.says(both, "cat .skills/x/body .skills/y/body; grep name: .skills/y/SKILL.md", "firstchangedname: x")
	b.Kill()
	b.Restart()
	c = b.dial(t)
	lists("x second-one-upload", "x first-upload")
	reads("changed")
	c.gets("box_delete_skill", `{"name":"x"}`, nil)
	lists("x first-upload")
	reads("first")
}

// Like LangBot's tool register_skill: an agent creates a package in its Workspace, which becomes a skill.
func TestADirectoryOfAWorkspaceBecomesASkill(t *testing.T) {
	t.Parallel()
	b := start(t)
	c := b.dial(t)
	c.gets("box_init", fmt.Sprintf(`{"local":{"host_root":%q,"default_workspace":"","allowed_mount_roots":[%q]}}`, b.shared, b.shared), nil)
	own := filepath.Join(b.shared, "default", "tenants", wire.Namespace(instance, workspace))
	var r map[string]any
	c.gets("box_exec", fmt.Sprintf(`{"session_id":"s","host_path":%q,"cmd":"mkdir -p made/one made/two link/x && cp /dev/stdin made/one/SKILL.md <<E\n%s\nE\necho Do. > made/two/skill.md; ln -s /etc link/x/etc; ln -s /etc out; echo Do. > link/x/SKILL.md","workdir":"/workspace"}`,
		own, strings.ReplaceAll(document("one"), "\n", `\n`)), &r)
	if r["exit_code"] != 0.0 {
		t.Fatal(r)
	}
	var found map[string]any
	c.gets("box_scan_skill_directory", fmt.Sprintf(`{"path":%q}`, own+"/made/one"), &found)
	if found["name"] != "one" || found["package_root"] != own+"/made/one" || found["description"] != "What one does." {
		t.Errorf(`found = %v, want found["name"] == "one" and found["package_root"] == own + "/made/one" and found["description"] == "What one does."`,
			found)
	}
	var made struct{ Skill map[string]any }
	c.gets("box_create_skill", fmt.Sprintf(`{"skill":{"name":"uno","display_name":"Uno","description":"","instructions":"","package_root":%q}}`, own+"/made/one"), &made)
	k := made.Skill
	if k["name"] != "uno" || k["display_name"] != "Uno" || k["description"] != "What one does." || k["instructions"] != "# one\n\n" || k["package_root"] != skillRoot(workspace)+"/uno" {
		t.Errorf("k = %q", k)
	}
	c.gets("box_create_skill", fmt.Sprintf(`{"skill":{"name":"two","package_root":%q}}`, own+"/made/two/"), &made)
	if names := c.skills(); !slices.Equal(names, []string{"two", "uno"}) || made.Skill["entry_file"] != "SKILL.md" {
		t.Errorf(`names = %q, made.Skill = %v, want names == []string{"two", "uno"} and made.Skill["entry_file"] == "SKILL.md"`,
			names, made.Skill)
	}
	for _, tc := range []struct{ action, path, want string }{
		{"scan", own + "/made", "Multiple skill directories found in " + own + "/made. Please choose a more specific path: " + own + "/made/one, " + own + "/made/two"},
		{"scan", own + "/none", "Directory does not exist: " + own + "/none"},
		{"scan", own + "/link", "Archive contains a symbolic link: …"},
		{"scan", own + "/../" + wire.Namespace(instance, "w2"), "scan path must stay within the Workspace skill root"},
		{"create", own + "/made", "No SKILL.md found in " + own + "/made"},
		{"taken", own + "/made/one", `Skill with name "uno" already exists`},
		{"create", filepath.Join(b.shared, "default"), "package_root must stay within the Workspace skill root"},
	} {
		if tc.action == "scan" {
			c.refused("box_scan_skill_directory", fmt.Sprintf(`{"path":%q}`, tc.path), "BoxValidationError: "+tc.want)
		} else {
			name := map[string]string{"create": "new", "taken": "uno"}[tc.action] // the name is looked at first
			c.refused("box_create_skill", fmt.Sprintf(`{"skill":{"name":%q,"package_root":%q}}`, name, tc.path), "BoxValidationError: "+tc.want)
		}
	}
	if err := os.WriteFile(filepath.Join(b.shared, "SKILL.md"), []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(b.shared, filepath.Join(own, "up")); err != nil {
		t.Fatal(err)
	}
	c.refused("box_scan_skill_directory", fmt.Sprintf(`{"path":%q}`, own+"/up"), "BoxValidationError: …") // there is no such directory in the box
	if got := c.ask("box_scan_skill_directory", fmt.Sprintf(`{"path":%q}`, own+"/up")); strings.Contains(string(got.Data), "secret") {
		t.Error("a symbolic link leads out of the Workspace")
	}
}

// lent returns extra mounts of skills, at the paths where LangBot wants them.
func lent(names ...string) string {
	var list []string
	for _, name := range names {
		list = append(list, fmt.Sprintf(`{"host_path":%q,"mount_path":"/workspace/.skills/%s","mode":"rw"}`, skillRoot(workspace)+"/"+name, name))
	}
	return `"extra_mounts":[` + strings.Join(list, ",") + "]"
}

// says runs a command in a session with skills, which must print want.
func (c *rpc) says(more, cmd, want string) {
	c.t.Helper()
	var r struct{ Stdout, Stderr string }
	c.gets("box_exec", fmt.Sprintf(`{"session_id":"s","cmd":%q,%s}`, cmd, more), &r)
	if r.Stdout != want {
		c.t.Errorf("%s: %q, want %q (%s)", cmd, r.Stdout, want, r.Stderr)
	}
}

func TestASessionHasTheSkillsThatLangBotLends(t *testing.T) {
	t.Parallel()
	b := start(t)
	c := b.dial(t)
	c.gets("box_create_skill", `{"skill":{"name":"s","instructions":"first\n"}}`, nil)
	c.gets("box_create_skill", `{"skill":{"name":"Größe_1","instructions":"other\n"}}`, nil)
	// Leftovers of LangBot's own runtime at the paths of skills.
	at := filepath.Join(b.shared, "w")
	host := fmt.Sprintf(`"host_path":%q,`, at)
	for _, dir := range []string{at, at + "/.skills", at + "/.skills/s"} {
		if err := errors.Join(os.Mkdir(dir, 0o755), os.Chown(dir, owner, owner)); err != nil {
			t.Fatal(err)
		}
	}
	c.says(host+lent("s", "Größe_1"), "tail -n1 .skills/s/SKILL.md; tail -n1 /workspace/.skills/Größe_1/SKILL.md; ls .skills", "first\nother\nGröße_1\ns")
	c.says(host+lent("s", "Größe_1"), "touch /skills/s/x 2>&1 | grep -o Read-only; ls /skills/s", "Read-only\nSKILL.md")
	c.says(host+lent("s", "Größe_1")+`,"workdir":"/workspace/.skills/s"`, "cat SKILL.md | tail -n1", "first")
	// Links that a program in the box has removed are restored, at the path that LangBot wants now.
	c.says(host+lent("s", "Größe_1")+`,"workdir":"/workspace"`, "rm -rf .skills", "")
	c.says(host+lent("s", "Größe_1"), "tail -n1 .skills/s/SKILL.md; ls .skills", "first\nGröße_1\ns")
	c.says(host+strings.ReplaceAll(lent("s", "Größe_1"), "/workspace/.skills/s", "/workspace/there/s"), "tail -n1 there/s/SKILL.md", "first")
	// The session goes on when skills are added, changed and removed, and so does a process in it.
	c.says(host+lent("s", "Größe_1"), "echo kept >/tmp/kept", "")
	c.gets("box_start_managed_process", `{"session_id":"s","spec":{"command":"cat","cwd":"/workspace/.skills/Größe_1"}}`, nil)
	c.gets("box_update_skill", `{"name":"s","skill":{"instructions":"second\n"}}`, nil)
	c.says(host+lent("s"), "tail -n1 .skills/s/SKILL.md; cat /tmp/kept", "second\nkept")
	c.gets("box_stop_managed_process", `{"session_id":"s"}`, nil)
	c.says(host+lent("s"), "ls /skills; cat /tmp/kept", "s\nkept")
	c.says(host+lent(), "ls /skills; cat /tmp/kept", "kept")
	c.says(host+lent(), "ls .skills", "") // nothing was written to them
	// A skill that cannot be linked where LangBot wants it is available at its own path.
	ro := strings.ReplaceAll(lent("s"), "/workspace/.skills/s", "/opt/s")
	c.says(host+ro, "tail -n1 /skills/s/SKILL.md", "second")
}

// LangBot mounts skills writable, and instructs models to work there: files that programs write are kept for the session, even if
// the skill changes in the store.
func TestProgramsWriteToSkills(t *testing.T) {
	t.Parallel()
	boxtest.RequireProgram(t, "python3")
	b := start(t)
	c := b.dial(t)
	c.gets("box_create_skill", `{"skill":{"name":"s","instructions":"first\n"}}`, nil)
	for name, text := range map[string]string{"scripts/make.py": "open('made.txt', 'w').write('made')", "data/a.txt": "old", "data/gone.txt": "x"} {
		c.gets("box_write_skill_file", fmt.Sprintf(`{"name":"s","path":%q,"content":%q}`, name, text), nil)
	}
	at := lent("s") + `,"workdir":"/workspace/.skills/s"`
	c.says(at, "python3 scripts/make.py; cat made.txt; mkdir build && touch build/x && ls", "madeSKILL.md\nbuild\ndata\nmade.txt\nscripts")
	c.says(at, "echo mine > scripts/own.py; echo mine >> data/a.txt; pwd; mkdir -p ../../v; echo x > ../../v/x.txt; cat /workspace/v/x.txt", "/workspace/.skills/s\nx")
	c.gets("box_update_skill", `{"name":"s","skill":{"instructions":"second\n"}}`, nil)
	c.gets("box_write_skill_file", `{"name":"s","path":"data/b.txt","content":"new"}`, nil)
	c.gets("box_write_skill_file", `{"name":"s","path":"scripts/own.py","content":"theirs"}`, nil)
	c.says(at, "tail -n1 SKILL.md; cat made.txt scripts/own.py data/a.txt data/b.txt; ls data", "second\nmademine\noldmine\nnewa.txt\nb.txt\ngone.txt")
	c.gets("box_update_skill", `{"name":"s","skill":{"instructions":"third\n"}}`, nil)
	c.says(at, "tail -n1 SKILL.md; cat scripts/own.py; ls -A ../", "third\nmine\n.boxd\ns")
	c.says(lent(), "cat .skills/s/made.txt", "made")
}

func TestASkillThatHasVanishedFailsNoSession(t *testing.T) {
	t.Parallel()
	b := start(t)
	c := b.dial(t)
	c.gets("box_create_skill", `{"skill":{"name":"s","instructions":"it\n"}}`, nil)
	c.says(lent("s", "never"), "tail -n1 .skills/s/SKILL.md; test -e .skills/never || echo none", "it\nnone")
	missing := func(want string) {
		t.Helper()
		list, err := b.Sessions(t.Context(), true)
		if err != nil || len(list) != 1 {
			t.Fatalf("list = %v, err = %v, want no error and len(list) == 1", list, err)
		}
		var got []string
		for _, k := range list[0].Skills {
			got = append(got, fmt.Sprintf("%s %v", k.Name, k.Missing))
		}
		if strings.Join(got, ", ") != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	missing("never true, s false")
	c.gets("box_delete_skill", `{"name":"s"}`, nil)
	c.says(lent("s"), "echo fine; ls /skills", "fine")
	missing("s true")
	c.gets("box_create_skill", `{"skill":{"name":"s","instructions":"again\n"}}`, nil)
	c.says(lent("s"), "tail -n1 .skills/s/SKILL.md", "again")
	missing("s false")
	many := []string{"s"}
	for i := range 3 * policy.MaxSkills {
		many = append(many, fmt.Sprint("many", i))
	}
	c.says(lent(many...), "tail -n1 .skills/s/SKILL.md; ls /skills", "again\ns")
	if list, err := b.Sessions(t.Context(), true); err != nil || len(list) != 1 || len(list[0].Skills) != policy.MaxSkills {
		t.Errorf("not as many as a session can have: list = %v, err = %v, want no error and len(list) == 1 and len(list[0].Skills) == policy.MaxSkills",
			list, err)
	}
}

func TestSkillsOfOtherWorkspacesAreNotLent(t *testing.T) {
	t.Parallel()
	b := start(t)
	c := b.dial(t)
	other := b.dial(t)
	other.workspace = "w2"
	other.gets("box_create_skill", `{"skill":{"name":"secret","instructions":"of w2"}}`, nil)
	for _, path := range []string{skillRoot("w2") + "/secret", skillRoot(workspace) + "/../" + wire.Namespace(instance, "w2") + "/secret", skillRoot(workspace), skillRoot(workspace) + "/a/b"} {
		c.refused("box_exec", fmt.Sprintf(`{"session_id":"s","cmd":"true","extra_mounts":[{"host_path":%q,"mount_path":"/workspace/.skills/secret","mode":"rw"}]}`, path),
			"BoxValidationError: host_path "+path+" is no skill of this Workspace")
	}
	c.says(lent("secret"), "ls /skills", "")
	c.says(lent("create-skill"), "ls /skills", "") // a built-in skill of boxd is not LangBot's
}

// Skills of LangBot's own runtime are imported once after the switch: one that is deleted later stays deleted.
func TestSkillsOfBeforeTheSwitchAreTaken(t *testing.T) {
	t.Parallel()
	b := start(t, boxtest.Kept)
	old := filepath.Join(b.shared, "skills", "tenants", wire.Namespace(instance, workspace))
	put := func(name, text string) {
		t.Helper()
		name = filepath.Join(old, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	put("one/SKILL.md", document("one"))
	put("one/scripts/run.sh", "echo one\n")
	put("one/inner/SKILL.md", document("inner"))
	put("group/two/skill.md", "Do two.")
	put("bad/SKILL.md", document("bad"))
	put("also-upload/SKILL.md", document("one")) // of the same name
	put("other/two/SKILL.md", document("three")) // in a directory of the same name
	if err := os.Symlink("/etc/passwd", filepath.Join(old, "bad", "link")); err != nil {
		t.Fatal(err)
	}
	if err := filepath.WalkDir(b.shared, func(p string, _ fs.DirEntry, err error) error { return errors.Join(err, os.Lchown(p, owner, owner)) }); err != nil {
		t.Fatal(err)
	}
	c := b.dial(t)
	c.gets("box_init", fmt.Sprintf(`{"local":{"host_root":%q,"default_workspace":"","allowed_mount_roots":[%q]}}`, b.shared, b.shared), nil)
	if names := slices.Sorted(slices.Values(c.skills())); !slices.Equal(names, []string{"one", "one", "three", "two"}) {
		t.Errorf(`%q: b.Log() = %s, want names == []string{"one", "one", "three", "two"}`, names, b.Log())
	}
	if !strings.Contains(b.Log(), "bad") {
		t.Error("the log does not name the skill that cannot be imported")
	}
	var read struct{ Content string }
	c.gets("box_read_skill_file", `{"name":"one","path":"scripts/run.sh"}`, &read)
	if read.Content != "echo one\n" {
		t.Errorf(`read.Content = %q, want "echo one\n"`, read.Content)
	}
	for _, name := range []string{"one", "two", "three"} {
		c.gets("box_delete_skill", fmt.Sprintf(`{"name":%q}`, name), nil)
	}
	b.Kill()
	b.Restart()
	c = b.dial(t)
	c.gets("box_init", fmt.Sprintf(`{"local":{"host_root":%q,"default_workspace":"","allowed_mount_roots":[%q]}}`, b.shared, b.shared), nil)
	if names := c.skills(); !slices.Equal(names, []string{"one"}) {
		t.Errorf(`after a restart: names = %q, want []string{"one"}`, names)
	}
}

// A Workspace without earlier skills is checked for them once, and nothing is logged.
func TestAWorkspaceWithoutEarlierSkillsIsAskedOnce(t *testing.T) {
	t.Parallel()
	b := start(t)
	c := b.dial(t)
	c.gets("box_init", fmt.Sprintf(`{"local":{"host_root":%q,"default_workspace":"","allowed_mount_roots":[%q]}}`, b.shared, b.shared), nil)
	if names := c.skills(); len(names) > 0 {
		t.Errorf("names = %q, want len(names) == 0", names)
	}
	if _, err := os.Stat(filepath.Join(b.State, "daemon", "langbot-skills-taken", wire.Namespace(instance, workspace))); err != nil {
		t.Errorf("no record that the earlier skills were looked for: %v", err)
	}
	if strings.Contains(b.Log(), "LangBot's own directory") {
		t.Error("the log names an earlier directory of LangBot that does not exist")
	}
}
