package cluster

import (
	"errors"
	"reflect"
	"slices"
	"testing"
	"time"
)

// Two Statuses are the same only if all of their fields are, but for the times that change with each probe.
func TestSameButTimes(t *testing.T) {
	newStatus := func() Status { return Status{Reports: Reports{Traffic: Traffic{Withdrawn: &Withdrawn{}}}} }
	before := newStatus()
	for what, change := range map[string]func(*Status){
		"Withdrawn": func(s *Status) { s.Traffic.Withdrawn = nil },
		"issued":    func(s *Status) { s.issued = time.Unix(1, 0) },
		"tried":     func(s *Status) { s.tried++ },
		"wanted":    func(s *Status) { s.wanted++ },
	} {
		next := newStatus()
		change(&next)
		if next.SameButTimes(before) {
			t.Errorf("%s makes no difference", what)
		}
	}
	next := newStatus()
	var change func(v reflect.Value, path string)
	change = func(v reflect.Value, path string) {
		switch {
		case v.Kind() == reflect.Pointer:
			change(v.Elem(), path)
		case v.Kind() == reflect.Struct && v.Type() != reflect.TypeFor[time.Time]():
			for f, field := range v.Fields() {
				switch {
				case f.Anonymous:
					change(field, path)
				case f.IsExported():
					change(field, path+"."+f.Name)
				}
			}
		default:
			v.Set(otherThanZero(t, v.Type()))
			isIgnored := slices.Contains([]string{".Since", ".LastContact"}, path)
			if next.SameButTimes(before) != isIgnored {
				t.Errorf("%s makes a difference: %t", path, isIgnored)
			}
			v.SetZero()
		}
	}
	change(reflect.ValueOf(&next), "")
}

func otherThanZero(t *testing.T, of reflect.Type) reflect.Value {
	t.Helper()
	v := reflect.New(of).Elem()
	switch of.Kind() {
	case reflect.String:
		v.SetString("other")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int64:
		v.SetInt(1)
	case reflect.Uint8:
		v.SetUint(1)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(of, 1, 1))
	case reflect.Map:
		v.Set(reflect.ValueOf(map[string]string{"other": ""}))
	case reflect.Interface:
		v.Set(reflect.ValueOf(errors.New("other")))
	case reflect.Struct:
		v.Set(reflect.ValueOf(time.Unix(1, 0)))
	default:
		t.Fatalf("%s has no other value", of)
	}
	return v
}
