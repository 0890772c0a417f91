//! The implementation of the trait.

use proc_macro2::{Span, TokenStream};
use quote::{quote, quote_spanned};
use syn::ext::IdentExt;
use syn::spanned::Spanned;
use syn::{
    Data, DeriveInput, Error, Field, Fields, Generics, LitStr, Member, Path, Result, Type, parse_quote,
};

use crate::options::Options;

pub fn implementation(input: &DeriveInput) -> Result<TokenStream> {
    let Data::Struct(data) = &input.data else {
        return Err(Error::new(
            input.ident.span(),
            "`OutboxEvent` can only be derived for a struct, because each event type has its own type. Use one \
             struct per event type, or implement the trait",
        ));
    };
    let options = Options::parse(input)?;
    refuse_attributes(&data.fields)?;
    let fields: Vec<(Member, &Field)> = data.fields.members().zip(&data.fields).collect();
    let (member, field) = key(input, &options.key, &fields)?;

    let krate: Path = options.krate.unwrap_or_else(|| parse_quote!(::pg_outbox));
    let generics = bounds(&input.generics, &field.ty, &krate);
    let (of_impl, of_type, conditions) = generics.split_for_impl();
    let name = &input.ident;
    let aggregate = options.aggregate;
    let event = options.event.unwrap_or_else(|| LitStr::new(&name.unraw().to_string(), name.span()));
    // The error for a key that is not Display points to the field.
    let at_field = Span::call_site().located_at(field.ty.span());
    let to_text = quote_spanned! {at_field=> ::std::string::ToString::to_string(&self.#member) };
    Ok(quote! {
        #[automatically_derived]
        impl #of_impl #krate::OutboxEvent for #name #of_type #conditions {
            const AGGREGATE_TYPE: &'static str = #aggregate;
            const EVENT_TYPE: &'static str = #event;

            fn aggregate_id(&self) -> ::std::string::String {
                #to_text
            }
        }
    })
}

/// The compiler accepts the attribute on a field too, where it would have no effect.
fn refuse_attributes(fields: &Fields) -> Result<()> {
    let mut attributes = fields.iter().flat_map(|field| &field.attrs);
    match attributes.find(|attribute| attribute.path().is_ident("outbox")) {
        None => Ok(()),
        Some(attribute) => Err(Error::new_spanned(
            attribute,
            "this attribute belongs to the struct. `#[outbox(aggregate = \"...\", key = \"...\")]` above it names the \
             field that is the key",
        )),
    }
}

/// Finds the field that `key` names.
fn key<'a>(input: &DeriveInput, key: &LitStr, fields: &[(Member, &'a Field)]) -> Result<(Member, &'a Field)> {
    let wanted = key.value();
    if let Some((member, field)) = fields.iter().find(|(member, _)| name(member) == wanted) {
        return Ok((member.clone(), field));
    }
    let names: Vec<String> = fields.iter().map(|(member, _)| format!("`{}`", name(member))).collect();
    let known = match &names[..] {
        [] => "The struct has no fields".to_owned(),
        [only] => format!("The only field is {only}"),
        [others @ .., last] => format!("The fields are {} and {last}", others.join(", ")),
    };
    let message = format!("`{}` has no field `{wanted}`. {known}", input.ident.unraw());
    Err(Error::new(key.span(), message))
}

/// A field's name in the attribute: without `r#`, and a number in a tuple struct.
fn name(member: &Member) -> String {
    match member {
        Member::Named(ident) => ident.unraw().to_string(),
        Member::Unnamed(index) => index.index.to_string(),
    }
}

/// Adds the conditions that the trait needs. Without type parameters, the compiler reports what is missing at the struct.
fn bounds(generics: &Generics, key: &Type, krate: &Path) -> Generics {
    let mut generics = generics.clone();
    if generics.type_params().next().is_some() {
        let conditions = generics.make_where_clause();
        conditions.predicates.push(parse_quote!(Self: #krate::__private::Serialize));
        conditions.predicates.push(parse_quote!(#key: ::std::fmt::Display));
    }
    generics
}
