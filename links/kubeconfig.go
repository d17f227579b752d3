package links

import (
	"encoding/base64"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"strings"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	clientcmdv1 "k8s.io/client-go/tools/clientcmd/api/v1"
	"sigs.k8s.io/yaml"
)

// loadKubeconfig decodes a kubeconfig. The decoder's own errors have parts of what they could not decode, which may be
// a key or a token, and not always the field. So where it fails the kubeconfig is compared with the type once more, and
// the error has the paths of fields, made of the type's own names and of indexes, and nothing that a user has
// written.
func loadKubeconfig(kubeconfig []byte) (*clientcmdapi.Config, error) {
	parsed, err := clientcmd.Load(kubeconfig)
	if err == nil {
		return parsed, nil
	}
	var decoded any
	if err := yaml.Unmarshal(kubeconfig, &decoded); err != nil {
		return nil, fmt.Errorf("the kubeconfig cannot be parsed: it is neither YAML nor JSON%s", lineOf(err))
	}

	document, isMap := decoded.(map[string]any)
	if isMap && isOr(document["kind"], "Config") && isOr(document["apiVersion"], "v1") {
		if found := misfits("", document, reflect.TypeFor[clientcmdv1.Config]()); len(found) > 0 {
			const most = 5
			return nil, errors.Join(found[:min(len(found), most)]...)
		}
	}
	return nil, errors.New("the kubeconfig cannot be parsed: it must be YAML or JSON of kind Config, apiVersion v1")
}

// isOr reports whether a field is absent or a text.
func isOr(v any, text string) bool { return v == nil || v == "" || v == text }

var yamlLine = regexp.MustCompile(`\bline \d+`)

// lineOf returns where YAML is wrong, for the end of a sentence.
func lineOf(err error) string {
	if line := yamlLine.FindString(err.Error()); line != "" {
		return ", see " + line
	}
	return ""
}

// misfits returns which fields below a path cannot be decoded into a type, each as a rejection.
func misfits(path string, value any, typ reflect.Type) (found []error) {
	reject := func(why, instead string) []error { return []error{rejectedField(path, why, instead)} }
	expected := func(what, instead string) []error {
		return reject(fmt.Sprintf("it is %s, and must be %s", kindOf(value), what), instead)
	}

	text, isText := value.(string)
	list, isList := value.([]any)

	members, isMap := value.(map[string]any)
	switch isBytes := typ == reflect.TypeFor[[]byte](); {
	case value == nil || typ.PkgPath() == "k8s.io/apimachinery/pkg/runtime": // an extension is anything
		return nil
	case typ.Kind() == reflect.Pointer:
		return misfits(path, value, typ.Elem())
	case isBytes && !isText:
		return expected("text in base64", "copy it again from the cluster")
	case isBytes:
		if _, err := base64.StdEncoding.DecodeString(text); err != nil {
			return reject("it is not base64, or was cut", "copy it again from the cluster")
		}
	case typ.Kind() == reflect.String && !isText:
		return expected("text", "write it in quotes")
	case typ.Kind() == reflect.Bool:
		if _, isBool := value.(bool); !isBool {
			return expected("true or false", "write it without quotes")
		}
	case typ.Kind() == reflect.Slice && !isList:
		return expected("a list", "begin each of its items with a dash")
	case typ.Kind() == reflect.Slice:
		return misfitsOfList(path, list, typ.Elem())
	case (typ.Kind() == reflect.Struct || typ.Kind() == reflect.Map) && !isMap:
		return expected("a map of fields", "write its fields below it, indented")
	case typ.Kind() == reflect.Map:
		for _, member := range members { // their keys are a user's
			found = append(found, misfits(path, member, typ.Elem())...)
		}
	case typ.Kind() == reflect.Struct:
		for field := range typ.Fields() {
			name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
			found = append(found, misfits(strings.TrimPrefix(path+"."+name, "."), members[name], field.Type)...)
		}
	}

	return found
}

// misfitsOfList also finds names that occur twice: the lists of a kubeconfig are maps by name.
func misfitsOfList(path string, list []any, t reflect.Type) (found []error) {
	first := map[any]int{}
	isNamed := false
	if t.Kind() == reflect.Struct {
		_, isNamed = t.FieldByName("Name")
	}

	for i, item := range list {
		at := fmt.Sprintf("%s[%d]", path, i)
		found = append(found, misfits(at, item, t)...)
		members, _ := item.(map[string]any)
		name, isText := members["name"].(string)
		if before, twice := first[name]; isNamed && isText && twice {
			found = append(found, rejectedField(at+".name", fmt.Sprintf("it is that of %s[%d]", path, before),
				"give each another name"))
		} else if isText {
			first[name] = i
		}
	}
	return found
}

// kindOf returns what a decoded value is, in words.
func kindOf(v any) string {
	switch v.(type) {
	case string:
		return "text"
	case bool:
		return "true or false"
	case []any:
		return "a list"
	case map[string]any:
		return "a map of fields"
	}
	return "a number"
}
