"""Hostile templates: an error that names itself, without reaching Python and without using up the machine."""

import pytest

from octavo.text.chat import ChatTemplate, TemplateError
from octavo.text.sandbox import MAX_SIZE

ASK = [{"role": "user", "content": "hi"}]

ESCAPES = (
    "{{ ''.__class__.__mro__ }}",
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ cycler.__init__.__globals__ }}",
    "{{ self.__init__.__globals__.os }}",
    "{{ messages.append(1) }}",
    "{{ messages[0].update({'role': 'x'}) }}",
    "{{ (messages[0]|attr('__class__')).mro() }}",
    "{{ '{0.__class__.__mro__}'.format(1) }}",
    "{{ ''.format.__globals__.x }}",
    "{{ raise_exception.__globals__['x'] }}",
    "{{ namespace.__init__.__globals__ }}",
    "{{ lipsum.__globals__ }}",
    "{% include 'x' %}",
    "{% import 'os' as os %}",
    "{% extends 'x' %}",
)
APPETITES = (
    "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
    "{{ range(1000000000) }}",
    "{{ 'a' * 10000000000 }}",
    "{{ 10000000000 * [0] }}",
    "{{ 10 ** 10000000000 }}",
    "{% set ns = namespace(n=7) %}{% for i in range(90000) %}{% set ns.n = ns.n * ns.n %}{% endfor %}",
    "{{ 'a' | center(10000000000) }}",
    "{{ 'a' | indent(10000000000) }}",
    "{{ 'a'.ljust(10000000000) }}",
    "{{ 'a\t'.expandtabs(10000000000) }}",
    "{{ '%10000000000d' % 1 }}",
    "{{ '%*d' % (10000000000, 1) }}",
    "{{ '%10000000000d' | format(1) }}",
    "{{ '{:10000000000}'.format(1) }}",
    "{{ '{:{}}'.format(1, 10000000000) }}",
    "{{ ('a' * 1000000).replace('a', 'b' * 1000000) }}",
    "{{ ('a' * 1000000) | replace('a', 'b' * 1000000) }}",
    "{{ ('b' * 1000000).join(['a'] * 1000000) }}",
    "{{ range(100000) | map('string') | join('b' * 1000000) }}",
    "{{ ['a'] | map('center', 10000000000) | join }}",
    "{% set ns = namespace(s='ab') %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
    "{% set ns = namespace(s='ab') %}{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
    "{% set ns = namespace(s=[1]) %}{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
    "{% set ns = namespace(s='ab') %}{% for i in range(60) %}"
    "{% set t %}{{ ns.s }}{{ ns.s }}{% endset %}{% set ns.s = t %}{% endfor %}",
    "{% for i in range(100000) %}{{ 'abcdefghij' * 1000 }}{% endfor %}",
    "{% macro f(n) %}{{ f(n) }}{% endmacro %}{{ f(1) }}",
    "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "{% for m in messages recursive %}{{ loop(messages) }}{% endfor %}",
    "{{ lipsum(n=1000000) }}",
)
FAILURES = (
    "{{ messages[0].x.y }}",
    "{{ 1 / 0 }}",
    "{{ messages + 1 }}",
    "{{ nothing() }}",
    "{{ 'a'.join(3) }}",
    "{{ strftime_now(3) }}",
    "{{ {}|tojson(indent={}) }}",
    "{{ 'x' | int(base=99) }}{{ [] | first.x }}",
)


@pytest.mark.parametrize("source", ESCAPES + APPETITES + FAILURES)
def test_it_ends_in_an_error_of_one_kind(source: str) -> None:
    with pytest.raises(TemplateError) as caught:
        ChatTemplate(source, {}).render(ASK)
    assert str(caught.value)


def test_internals_print_as_nothing() -> None:
    assert ChatTemplate("[{{ ''.__class__ }}{{ messages.__len__ }}]", {}).render(ASK) == "[]"


def test_a_template_cannot_count_its_own_steps() -> None:
    source = "{% for i in range(100000) %}{% for j in range(100000) %}{% set meter = 0 %}{% endfor %}{% endfor %}"
    with pytest.raises(TemplateError, match="more than 1000000 steps"):
        ChatTemplate(source, {}).render(ASK)


@pytest.mark.slow
def test_dear_steps_end_by_time() -> None:
    source = "{% for i in range(100000) %}{% set x = 'a' * 16000000 %}{% endfor %}"
    with pytest.raises(TemplateError, match="more than 5 s"):
        ChatTemplate(source, {}).render(ASK)


def test_what_fits_is_not_refused() -> None:
    source = "{{ 'ab' * 1000 }}{% for i in range(3) %}{{ loop.index }}/{{ loop.length }}{{ '%5d' % i }} {% endfor %}"
    wanted = "ab" * 1000 + "".join(f"{i + 1}/3{i:5d} " for i in range(3))
    assert ChatTemplate(source, {}).render(ASK) == wanted
    long = [{"role": "user", "content": "x" * (MAX_SIZE // 2)}]
    assert len(ChatTemplate("{{ messages[0].content + '!' }}", {}).render(long)) == MAX_SIZE // 2 + 1


def test_each_render_counts_for_itself() -> None:
    template = ChatTemplate("{% for i in range(90000) %}{% endfor %}{{ messages[0].content }}", {})
    assert [template.render(ASK) for _ in range(12)] == ["hi"] * 12
