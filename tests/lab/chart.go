// Renders a Helm chart on machines without Helm. It supports the same template language (Go's text/template with sprig's functions)
// and those objects and functions of Helm that the chart of this project uses: .Values .Chart .Release
// .Capabilities.APIVersions.Has .Files.Get include toYaml.
//
//	chart DIR [VALUES]      VALUES is JSON or YAML, merged over values.yaml
//
// CHART_API_VERSIONS lists the API versions of the cluster, as helm's --api-versions, separated by commas; default: those of a new
// cluster. An unknown object or function is an error, not an empty text. Charts that need more need Helm.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"text/template"

	"github.com/Masterminds/sprig"
	"gopkg.in/yaml.v3"
)

type tree = map[string]interface{}

// files is .Files: the files of the chart's folder.
type files string

func (dir files) Get(name string) (string, error) {
	text, err := os.ReadFile(filepath.Join(string(dir), name))
	return string(text), err
}

// versions is .Capabilities.APIVersions: the API versions that the API server supports.
type versions []string

func (known versions) Has(name string) bool {
	for _, one := range known {
		if one == name {
			return true
		}
	}
	return false
}

func apiVersions() versions {
	given, said := os.LookupEnv("CHART_API_VERSIONS")
	if !said {
		given = "admissionregistration.k8s.io/v1/ValidatingAdmissionPolicy"
	}
	return strings.Split(given, ",")
}

// read decodes a YAML text into the types that Helm uses: Helm converts it to JSON and back, so every number is a float64.
func read(text []byte) (out tree, err error) {
	var loose tree
	if err = yaml.Unmarshal(text, &loose); err != nil {
		return nil, err
	}
	strict, err := json.Marshal(loose)
	if err != nil {
		return nil, err
	}
	return out, json.Unmarshal(strict, &out)
}

// over merges top into base: maps are merged, other values are replaced, null removes a key.
func over(base, top tree) {
	for key, value := range top {
		below, isMap := base[key].(tree)
		if above, also := value.(tree); also && isMap {
			over(below, above)
		} else if value == nil {
			delete(base, key)
		} else {
			base[key] = value
		}
	}
}

func render(dir, overlay string) error {
	load := func(name string) (tree, error) {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return nil, err
		}
		return read(text)
	}
	about, err := load("Chart.yaml")
	if err != nil {
		return err
	}
	values, err := load("values.yaml")
	if err != nil {
		return err
	}
	top, err := read([]byte(overlay))
	if err != nil {
		return fmt.Errorf("the values: %w", err)
	}
	over(values, top)
	// In templates the fields of Chart.yaml begin with a capital letter.
	chart := tree{}
	for key, value := range about {
		chart[strings.ToUpper(key[:1])+key[1:]] = value
	}
	all := template.New("chart").Option("missingkey=error")
	functions := sprig.TxtFuncMap()
	delete(functions, "env") // as in Helm: a chart must not read the environment
	delete(functions, "expandenv")
	functions["toYaml"] = func(value interface{}) (string, error) {
		text, err := yaml.Marshal(value)
		return strings.TrimSuffix(string(text), "\n"), err
	}
	functions["include"] = func(name string, data interface{}) (string, error) {
		var out strings.Builder
		err := all.ExecuteTemplate(&out, name, data)
		return out.String(), err
	}
	all.Funcs(functions)
	paths, err := filepath.Glob(filepath.Join(dir, "templates", "*"))
	if err != nil {
		return err
	}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if _, err = all.New(path).Parse(string(text)); err != nil {
			return err
		}
	}
	data := tree{
		"Values":       values,
		"Chart":        chart,
		"Release":      tree{"Name": "inplace", "Namespace": "default", "Service": "Helm"},
		"Files":        files(dir),
		"Capabilities": tree{"APIVersions": apiVersions()},
	}
	for _, path := range paths {
		if !strings.HasSuffix(path, ".yaml") {
			continue
		}
		var out strings.Builder
		if err := all.ExecuteTemplate(&out, path, data); err != nil {
			return err
		}
		if text := strings.TrimSpace(out.String()); text != "" {
			fmt.Printf("---\n%s\n", text)
		}
	}
	return nil
}

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: chart DIR [VALUES]")
		os.Exit(2)
	}
	if err := render(os.Args[1], strings.Join(os.Args[2:], "\n")); err != nil {
		fmt.Fprintln(os.Stderr, "chart:", err)
		os.Exit(1)
	}
}
