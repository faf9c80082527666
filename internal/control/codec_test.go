package control

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestRequestsAreRead(t *testing.T) {
	half := 0.5
	for line, want := range map[string]Request{
		`{"v":1,"cmd":"status"}`: {V: 1, Cmd: CmdStatus},
		` {"v":1,"id":"é","cmd":"pause","tags":["a","b c"],"timeout_s":0.5}` + "\r": {V: 1, ID: "é", Cmd: CmdPause, Tags: []string{"a", "b c"}, Timeout: &half},
		`{"cmd":"resume","tags":[],"v":1}`:                                          {V: 1, Cmd: CmdResume, Tags: []string{}},
		`{"v":1,"cmd":"read","address":"0x7f00","size":16}`:                         {V: 1, Cmd: CmdRead, Address: "0x7f00", Size: 16},
		`{"v":1,"cmd":"devices"}`:                                                   {V: 1, Cmd: CmdDevices},
		`{"v":1,"cmd":"subscribe"}`:                                                 {V: 1, Cmd: CmdSubscribe},
	} {
		got, fault := ParseRequest([]byte(line))
		if diff := cmp.Diff(want, got); diff != "" || fault != nil {
			t.Errorf("%s: %v (-want +got)\n%s", line, fault, diff)
		}
	}
}

func TestRequestsThatMakeNoSenseAreToldWhatIsWrong(t *testing.T) {
	for _, c := range []struct{ line, id, says string }{
		{``, "", "an empty line"},
		{`null`, "", "not a request: null"},
		{`[]`, "", "one JSON object on one line"},
		{`{"v":1`, "", "not a request: unexpected EOF"},
		{`{"v":1,"cmd":"status"} x`, "", "more than one value"},
		{`{"v":1,"cmd":"status"}{}`, "", "more than one value"},
		{`{"id":"a","cmd":"status"}`, "a", `names no version of the protocol: this rank speaks version 1`},
		{`{"v":2,"id":"a","cmd":"status","new":1}`, "a", "version 2 of the protocol, this rank version 1"},
		{`{"v":"x","id":"a","cmd":"status"}`, "a", `version "\"x\"" of the protocol, which is no number; this rank speaks version 1`},
		{`{"v":1e99,"cmd":"status"}`, "", "version 1e+99 of the protocol, this rank version 1"},
		{`{"v":1,"id":7,"cmd":"status"}`, "", "not a request"},
		{`{"v":1,"id":"` + strings.Repeat("x", 200) + `","cmd":"status"}`, "", "the id is longer than 128 bytes"},
		{`{"v":1,"id":"a"}`, "a", `unknown command "": this rank knows devices, pause, read, resume, status, subscribe`},
		{`{"v":1,"id":"a","cmd":"reboot"}`, "a", `unknown command "reboot"`},
		{`{"v":1,"id":"a","cmd":"pause","tag":"x"}`, "a", `pause knows no field "tag"`},
		{`{"v":1,"id":"a","cmd":"status","tags":["x"]}`, "a", `status knows no field "tags"`},
		{`{"v":1,"id":"a","cmd":"pause","tags":"x"}`, "a", "not a request"},
		{`{"v":1,"id":"a","cmd":"pause","tags":[""]}`, "a", `"" is no tag`},
		{`{"v":1,"id":"a","cmd":"pause","tags":["a\u0000b"]}`, "a", "is no tag"},
		{`{"v":1,"id":"a","cmd":"pause","tags":["` + strings.Repeat("x", 300) + `"]}`, "a", "is no tag"},
		{`{"v":1,"id":"a","cmd":"pause","timeout_s":"soon"}`, "a", "not a request"},
		{`{"v":1,"id":"a","cmd":"pause","timeout_s":1e999}`, "a", "not a request"},
		{`{"v":1,"id":"a","cmd":"read","size":1}`, "a", `address "" is not of the form`},
		{`{"v":1,"id":"a","cmd":"read","address":"0x1g","size":1}`, "a", `address "0x1g" is not of the form`},
		{`{"v":1,"id":"a","cmd":"withdraw"}`, "a", `needs the id of a request in the field "of"`},
		{`{"v":1,"id":"a","cmd":"status","of":"b"}`, "a", `status knows no field "of"`},
		{`{"v":1,"id":"a","cmd":"read","address":"0x10"}`, "a", "size 0 is not between 1 and 1048576"},
		{`{"v":1,"id":"a","cmd":"read","address":"0x10","size":1048577}`, "a", "size 1048577 is not between"},
		{`{"v":1,"id":"a","cmd":"read","address":"0x10","size":-1}`, "a", "not a request"},
	} {
		r, fault := ParseRequest([]byte(c.line))
		if fault == nil || fault.Code != 1 || !strings.Contains(fault.Message, c.says) || r.ID != c.id {
			t.Errorf("%.80s: id %q, %v, want id %q and %q", c.line, r.ID, fault, c.id, c.says)
		}
	}
}

// Whatever comes is a request that could be sent again as it is, or an error with a text of one line.
func FuzzParseRequest(f *testing.F) {
	for _, line := range []string{
		`{"v":1,"id":"a","cmd":"pause","tags":["x"],"timeout_s":1.5}`, `{"v":1,"cmd":"read","address":"0xff","size":1}`,
		`{"v":2}`, `{"v":"\n"}`, `null`, `{}`, `{"v":1,"cmd":"a\nb"}`,
	} {
		f.Add([]byte(line))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		r, fault := ParseRequest(line)
		if fault != nil {
			if fault.Message == "" || strings.ContainsAny(fault.Message, "\n\r") || len(r.ID) > MaxID {
				t.Fatalf("%q: %+v", line, fault)
			}
			return
		}
		again, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		same, fault := ParseRequest(again)
		if diff := cmp.Diff(r, same); diff != "" || fault != nil {
			t.Fatalf("%q became %s: %v\n%s", line, again, fault, diff)
		}
	})
}
